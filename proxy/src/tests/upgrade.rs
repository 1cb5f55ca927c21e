use super::*;

#[tokio::test]
async fn upgrade_is_authenticated_and_forwarded() {
    let gateway = TestGateway::start(OriginBehavior::Upgrade).await;
    assert_eq!(
        gateway.get("/socket", UPGRADE).await.code(),
        "authentication_required"
    );
    assert!(gateway.origin.seen().is_empty());
    for round in 0..50 {
        let mut client = gateway.connect().await;
        let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
        let spoofed = "X-Postern-Kind: service\r\n";
        assert_eq!(
            client
                .ask(&format!(
                    "GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}{spoofed}\r\n"
                ))
                .await
                .status,
            101,
            "round {round}"
        );
        // Data in the packet of the 101.
        assert_eq!(client.bytes(5).await, "hello");
        client.write("ping").await;
        assert_eq!(client.bytes(4).await, "ping");
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(
            has_field(&seen, "X-Postern-Kind: user") && !seen.contains("service"),
            "{seen}"
        );
    }
}

/// A gateway whose route `/socket` takes a token among the subprotocols.
async fn accepting_subprotocol_token(behavior: OriginBehavior) -> TestGateway {
    let routes = ROUTES.replace(
        "websocket = true",
        "websocket = true\nwebsocket_token = true",
    );
    TestGateway::routed(behavior, "", "", &routes).await
}

#[tokio::test]
async fn subprotocol_token_stays_at_the_gateway() {
    const CHAT: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Protocol: chat\r\n\r\n";
    const FIELD: &str = "Sec-WebSocket-Protocol: ";
    for (offered, forwarded, behavior, selected) in [
        ("bearer, TOKEN", None, OriginBehavior::Upgrade, "bearer"),
        ("bearer,TOKEN", None, OriginBehavior::Upgrade, "bearer"),
        (
            "chat, bearer, TOKEN",
            Some("chat"),
            OriginBehavior::Upgrade,
            "bearer",
        ),
        (
            "bearer, TOKEN, chat, b",
            Some("chat, b"),
            OriginBehavior::Text(CHAT),
            "chat",
        ),
        (
            "chat\r\nSec-WebSocket-Protocol: bearer , TOKEN",
            Some("chat"),
            OriginBehavior::Text(CHAT),
            "chat",
        ),
        (
            "bearer, TOKEN, bearer, TOKEN",
            None,
            OriginBehavior::Upgrade,
            "bearer",
        ),
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
        match forwarded {
            Some(rest) => assert!(has_field(&seen, &format!("{FIELD}{rest}")), "{seen}"),
            None => assert!(
                !seen.to_ascii_lowercase().contains("sec-websocket-protocol"),
                "{seen}"
            ),
        }
        assert!(has_field(&seen, "X-Postern-Kind: user"), "{seen}");
        drop(client);
        let text = serde_json::to_string(&gateway.finish().await).expect("JSON");
        assert!(!text.contains(&token), "{text}");
    }
}

#[tokio::test]
async fn subprotocol_token_is_verified_where_it_is_accepted() {
    let gateway = accepting_subprotocol_token(OriginBehavior::Upgrade).await;
    let (token, other) = (gateway.user(), gateway.service("auth"));
    let authorized = format!("Authorization: Bearer {other}\r\n");
    for (target, fields, code) in [
        (
            "/socket",
            format!("{UPGRADE}Sec-WebSocket-Protocol: bearer, x.y.z\r\n"),
            "token_malformed",
        ),
        (
            "/socket",
            format!("{UPGRADE}Sec-WebSocket-Protocol: bearer\r\n"),
            "token_malformed",
        ),
        (
            "/socket",
            format!("{UPGRADE}Sec-WebSocket-Protocol: {token}\r\n"),
            "authentication_required",
        ),
        (
            "/socket",
            format!("{UPGRADE}Sec-WebSocket-Protocol: Bearer, {token}\r\n"),
            "authentication_required",
        ),
        (
            "/socket",
            format!("Sec-WebSocket-Protocol: bearer, {token}\r\n"),
            "authentication_required",
        ),
        (
            "/any/1",
            format!("{UPGRADE}Sec-WebSocket-Protocol: bearer, {token}\r\n"),
            "authentication_required",
        ),
        // `Authorization` decides.
        (
            "/socket",
            format!("{UPGRADE}{authorized}Sec-WebSocket-Protocol: bearer, {token}\r\n"),
            "user_required",
        ),
    ] {
        let response = gateway.get(target, &fields).await;
        assert_eq!(response.code(), code, "{target} {fields}");
    }
    assert!(gateway.origin.seen().is_empty());
}

#[tokio::test]
async fn route_without_websocket_forwards_no_upgrade() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    assert_eq!(gateway.get("/open", UPGRADE).await.status, 200);
    let seen = gateway.origin.only().to_ascii_lowercase();
    assert!(
        !seen.contains("\r\nupgrade:") && !seen.contains("\r\nconnection: upgrade"),
        "{seen}"
    );
}

#[tokio::test]
async fn request_with_a_body_is_forwarded_without_an_upgrade() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    for (framing, body) in [
        ("Content-Length: 2", "hi"),
        ("Transfer-Encoding: chunked", "2\r\nhi\r\n0\r\n\r\n"),
    ] {
        let head = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}{framing}");
        let answer = gateway.send(&format!("{head}\r\n\r\n{body}")).await;
        assert_eq!(answer.status, 200, "{framing}");
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(has_field(&seen, framing) && seen.ends_with(body), "{seen}");
        let names_upgrade = seen.to_ascii_lowercase().contains("upgrade:");
        assert!(!names_upgrade, "{seen}");
    }
}

/// Messages that the client sends, and those that it receives.
const FRAMES: &[(&str, &str)] = &[
    ("ping", "ping"),
    ("a longer frame than before", "a longer frame than before"),
];

/// Returns the number of tunnels, from `POSTERN_SOAK` if set.
fn rounds() -> usize {
    Env::of_process()
        .get("POSTERN_SOAK")
        .map_or(400, |rounds| rounds.parse().expect("a number"))
}

/// Opens tunnels concurrently and sequentially. No byte may be lost in either direction, however
/// fast the origin answers 101 (Pingora issue 946).
async fn soak(gateway: TestGateway, exchange: &'static [(&'static str, &'static str)]) {
    let gateway = Arc::new(gateway);
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    let lanes = 8;
    let tunnels: Vec<_> = (0..lanes)
        .map(|lane| {
            let (gateway, bearer) = (Arc::clone(&gateway), bearer.clone());
            tokio::spawn(async move {
                for round in 0..rounds() / lanes {
                    let mut client = gateway.connect().await;
                    client
                        .write(&format!(
                            "GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}\r\n"
                        ))
                        .await;
                    let answer = client.response().await;
                    assert_eq!(
                        answer.map(|answer| answer.status),
                        Some(101),
                        "{lane}/{round}"
                    );
                    assert_eq!(client.bytes(5).await, "hello", "{lane}/{round}");
                    for (said, heard) in exchange {
                        client.write(said).await;
                        assert_eq!(client.bytes(heard.len()).await, *heard, "{lane}/{round}");
                    }
                    if exchange.is_empty() {
                        assert!(client.is_closed().await, "{lane}/{round}");
                    }
                }
            })
        })
        .collect();
    for tunnel in tunnels {
        tunnel.await.expect("no tunnel is truncated");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tunnels_lose_no_byte() {
    soak(TestGateway::start(OriginBehavior::Upgrade).await, FRAMES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_before_close_reaches_the_client() {
    soak(
        TestGateway::start(OriginBehavior::UpgradeAndLeave).await,
        &[],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tls_tunnels_lose_no_byte() {
    let tls = UpstreamTls::new();
    for (behavior, exchange) in [
        (OriginBehavior::Upgrade, FRAMES),
        (OriginBehavior::UpgradeAndLeave, &[]),
    ] {
        soak(tls.gateway(behavior, "").await, exchange).await;
    }
}
