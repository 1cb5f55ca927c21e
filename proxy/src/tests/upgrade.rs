use super::*;

#[tokio::test]
async fn upgrade_is_authenticated_and_forwarded() {
    let gateway = TestGateway::start(OriginBehavior::Upgrade).await;
    let refused = gateway.get("/socket", UPGRADE).await;
    assert_eq!(refused.code(), "authentication_required");
    gateway.origin.assert_unused();
    let fields = format!("{}X-Postern-Kind: service\r\n", gateway.bearer());
    for _ in 0..50 {
        let mut client = gateway.tunnel(&fields).await;
        // Data in the packet of the 101.
        assert_eq!(client.bytes(5).await, "hello");
        client.write("ping").await;
        assert_eq!(client.bytes(4).await, "ping");
        let seen = gateway.origin.seen().pop().expect("a request");
        let holds = has_field(&seen, "X-Postern-Kind: user") && !seen.contains("service");
        assert!(holds, "{seen}");
    }
}

/// A gateway whose route `/socket` takes a token among the subprotocols.
async fn accepting_subprotocol_token(behavior: OriginBehavior) -> TestGateway {
    let lines = "websocket = true\nwebsocket_token = true";
    let routes = ROUTES.replace("websocket = true", lines);
    TestGateway::routed(behavior, "", "", &routes).await
}

#[tokio::test]
async fn subprotocol_token_stays_at_the_gateway() {
    const CHAT: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Protocol: chat\r\n\r\n";
    const FIELD: &str = "Sec-WebSocket-Protocol: ";
    let (upgrade, chat) = (OriginBehavior::Upgrade, OriginBehavior::Text(CHAT));
    let two_fields = "chat\r\nSec-WebSocket-Protocol: bearer , TOKEN";
    for (offered, forwarded, behavior, selected) in [
        ("bearer, TOKEN", "", upgrade, "bearer"),
        ("bearer,TOKEN", "", upgrade, "bearer"),
        ("chat, bearer, TOKEN", "chat", upgrade, "bearer"),
        ("bearer, TOKEN, chat, b", "chat, b", chat, "chat"),
        (two_fields, "chat", chat, "chat"),
        ("bearer, TOKEN, bearer, TOKEN", "", upgrade, "bearer"),
    ] {
        let gateway = accepting_subprotocol_token(behavior).await;
        let token = gateway.user();
        let field = format!("{FIELD}{}\r\n", offered.replace("TOKEN", &token));
        let mut client = gateway.connect().await;
        let request = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{UPGRADE}{field}\r\n");
        let response = client.ask(&request).await;
        assert_eq!(response.status, 101, "{offered}");
        let answered = response.header("sec-websocket-protocol");
        assert_eq!(answered, Some(selected), "{offered}");
        let seen = gateway.origin.only();
        assert!(!seen.contains(&token) && !seen.contains("bearer"), "{seen}");
        let found = values(&seen, "sec-websocket-protocol").concat();
        assert_eq!(found, forwarded, "{seen}");
        assert_fields(&seen, &["X-Postern-Kind: user"]);
        drop(client);
        let text = serde_json::to_string(&gateway.finish().await).expect("JSON");
        assert!(!text.contains(&token), "{text}");
    }
}

#[tokio::test]
async fn subprotocol_token_is_verified_where_it_is_accepted() {
    let gateway = accepting_subprotocol_token(OriginBehavior::Upgrade).await;
    let (token, other) = (gateway.user(), gateway.service("auth"));
    let authorized = format!("{UPGRADE}Authorization: Bearer {other}\r\n");
    let (missing, malformed) = ("authentication_required", "token_malformed");
    for (target, fields, offered, code) in [
        ("/socket", UPGRADE, "bearer, x.y.z", malformed),
        ("/socket", UPGRADE, "bearer", malformed),
        ("/socket", UPGRADE, "TOKEN", missing),
        ("/socket", UPGRADE, "Bearer, TOKEN", missing),
        ("/socket", "", "bearer, TOKEN", missing),
        ("/any/1", UPGRADE, "bearer, TOKEN", missing),
        // `Authorization` decides.
        ("/socket", &authorized, "bearer, TOKEN", "user_required"),
    ] {
        let offered = offered.replace("TOKEN", &token);
        let fields = format!("{fields}Sec-WebSocket-Protocol: {offered}\r\n");
        let response = gateway.get(target, &fields).await;
        assert_eq!(response.code(), code, "{target} {fields}");
    }
    assert_eq!(gateway.origin.seen(), [""; 0]);
}

#[tokio::test]
async fn route_without_websocket_forwards_no_upgrade() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    assert_eq!(gateway.get("/open", UPGRADE).await.status, 200);
    let seen = gateway.origin.only().to_ascii_lowercase();
    let holds = !seen.contains("\r\nupgrade:") && !seen.contains("\r\nconnection: upgrade");
    assert!(holds, "{seen}");
}

#[tokio::test]
async fn request_with_a_body_is_forwarded_without_an_upgrade() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let bearer = gateway.bearer();
    for (framing, body) in [
        ("Content-Length: 2", "hi"),
        ("Transfer-Encoding: chunked", "2\r\nhi\r\n0\r\n\r\n"),
    ] {
        let head = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}{framing}");
        let answer = gateway.send(&format!("{head}\r\n\r\n{body}")).await;
        assert_eq!(answer.status, 200, "{framing}");
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(has_field(&seen, framing) && seen.ends_with(body), "{seen}");
        assert!(!seen.to_ascii_lowercase().contains("upgrade:"), "{seen}");
    }
}

#[tokio::test]
async fn refusal_of_an_upgrade_is_forwarded() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
    ] {
        let gateway = TestGateway::start(OriginBehavior::Text(answer)).await;
        let (bearer, mut client) = (gateway.bearer(), gateway.connect().await);
        let request = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}\r\n");
        let mut got = client.ask(&request).await;
        if got.status == 103 {
            got = client.answer().await;
        }
        assert_eq!((got.status, got.body.as_str()), (403, "no"), "{answer:?}");
    }
}

/// Opens tunnels one after another. No byte may be lost in either direction, however fast the
/// origin answers 101 (Pingora issue 946).
async fn soak(gateway: Arc<TestGateway>, has_exchange: bool) {
    for round in 0..50 {
        let mut client = gateway.tunnel(&gateway.bearer()).await;
        assert_eq!(client.bytes(5).await, "hello", "{round}");
        if !has_exchange {
            assert!(client.is_closed().await, "{round}");
            continue;
        }
        for said in ["ping", "a longer frame than before"] {
            client.write(said).await;
            assert_eq!(client.bytes(said.len()).await, said, "{round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tunnels_lose_no_byte() {
    let tls = UpstreamTls::new();
    let leaving = OriginBehavior::UpgradeAndLeave;
    for (behavior, has_exchange) in [(OriginBehavior::Upgrade, true), (leaving, false)] {
        let plain = TestGateway::start(behavior).await;
        for gateway in [plain, tls.gateway(behavior, "").await] {
            let gateway = Arc::new(gateway);
            let lanes = (0..8).map(|_| tokio::spawn(soak(Arc::clone(&gateway), has_exchange)));
            for lane in lanes.collect::<Vec<_>>() {
                lane.await.expect("no tunnel is truncated");
            }
        }
    }
}
