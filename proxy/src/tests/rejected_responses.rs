//! Responses of an origin that are not forwarded.

use super::*;

/// Several consecutive failures are intended; no address is ejected for them.
const NO_EJECTION: &str = "[upstream.origin.outlier]\nfailures = 0\n";

/// Requests that do not ask for an upgrade.
fn requests() -> [String; 5] {
    let long = "x".repeat(20 << 10);
    [
        GET.to_owned(),
        "GET /open HTTP/1.0\r\nHost: gate\r\n\r\n".to_owned(),
        "GET /open HTTP/1.1\r\nHost: gate\r\nExpect: 100-continue\r\n\r\n".to_owned(),
        "POST /open HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
            .to_owned(),
        format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {}\r\n\r\n{long}", long.len()),
    ]
}

/// Starts a gateway before an origin with this response.
async fn answering(answer: &'static str) -> TestGateway {
    TestGateway::h2c(OriginBehavior::Text(answer), NO_EJECTION, "", ROUTES).await
}

/// The gateway forwards no upgrade of these requests.
#[tokio::test]
async fn unrequested_upgrade_is_rejected() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw bytes";
    let gateway = answering(answer).await;
    let bearer = gateway.bearer();
    let socket = [
        ("1.1", ""),
        ("1.1", "h2c"),
        ("1.1", "other"),
        ("1.0", "websocket"),
    ];
    let socket = socket.map(|(version, upgrade)| {
        let fields = match upgrade {
            "" => String::new(),
            other => format!("Connection: Upgrade\r\nUpgrade: {other}\r\n"),
        };
        format!("GET /socket HTTP/{version}\r\nHost: gate\r\n{bearer}{fields}\r\n")
    });
    for request in requests().into_iter().chain(socket) {
        let problem = gateway.send(&request).await.problem();
        assert_eq!(problem, "502 upstream_failed", "{:?}", &request[..20]);
    }
    let mut client = http2_client(&gateway, 65_535).await;
    let reply = get(&mut client, "/open", &[]).await;
    assert_eq!(reply.problem(), "502 upstream_failed");
    drop(client);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 10);
    for event in events {
        assert_members(&event, &json!({ "status": 502, "code": "upstream_failed" }));
    }
}

/// The tests of responses have all forms.
#[tokio::test]
async fn malformed_answer_to_an_upgrade_is_refused() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nraw bytes",
    ] {
        let gateway = answering(answer).await;
        let fields = format!("{}{UPGRADE}", gateway.bearer());
        let refused = gateway.get("/socket", &fields).await;
        assert_eq!(refused.problem(), "502 upstream_failed", "{answer:?}");
    }
}

#[tokio::test]
async fn hop_by_hop_and_identity_fields_are_not_forwarded() {
    let answer = "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nConnection: x-other , Content-Length\r\nX-Hop: 1\r\n\
                  X-Other: 2\r\nX-Kept: 3\r\nX-Postern-Code: rate_limited\r\nX-Postern-Subject: eve\r\nContent-Length: 2\r\n\r\nok";
    let gateway = TestGateway::start(OriginBehavior::Text(answer)).await;
    let got = gateway.get("/open", "").await;
    let actual = (got.status, got.body.as_str(), got.header("x-kept"));
    assert_eq!(actual, (200, "ok", Some("3")));
    for name in ["x-hop", "x-other", "x-postern-code", "x-postern-subject"] {
        assert_eq!(got.header(name), None, "{name}");
    }
    let front = TlsGateway::start(OriginBehavior::Text(answer), "", "").await;
    let got = get(&mut front.client().await, "/open", &[]).await;
    for name in got.headers.keys().map(http::HeaderName::as_str) {
        let is_hop = ["x-hop", "x-other", "connection"].contains(&name);
        assert!(!is_hop && !name.starts_with("x-postern"), "{name}");
    }
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade, X-Hop\r\nX-Hop: 1\r\n\r\n";
    let gateway = TestGateway::start(OriginBehavior::Text(upgraded)).await;
    let fields = format!("{}{UPGRADE}", gateway.bearer());
    let got = gateway.get("/socket", &fields).await;
    assert_eq!((got.status, got.header("x-hop")), (101, None));
    let actual = (got.header("connection"), got.header("upgrade"));
    assert_eq!(actual, (Some("Upgrade"), Some("websocket")));
}

#[tokio::test]
async fn empty_chunk_size_does_not_end_a_response() {
    for rest in ["\r\n\r\n", "\r\n2\r\nok\r\n0\r\n\r\n", ";x\r\n\r\n"] {
        let answer =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n{rest}");
        let answer: &'static str = answer.leak();
        let gateway = answering(answer).await;
        for request in requests() {
            let mut client = gateway.begin(&request).await;
            let got = client.rest().await;
            // A truncated response lacks its last chunk; for HTTP/1.0 the connection is reset.
            let is_part = |got: &str| request.contains("HTTP/1.1") && !got.ends_with("0\r\n\r\n");
            let is_error = |got: &str| got.contains("upstream_failed") || is_part(got);
            let is_refused = got.as_deref().is_none_or(is_error);
            assert!(is_refused, "{rest:?} to {:?}: {got:?}", &request[..20]);
        }
        let mut client = http2_client(&gateway, 65_535).await;
        let (got, _) = send(&mut client, head("GET", "/open", &[]), true);
        let holds = !reply(got).await.is_ok_and(|got| got.status == 200);
        assert!(holds, "{rest:?} to HTTP/2");
    }
}

#[tokio::test]
async fn idle_tls_connection_is_reused_and_retried() {
    let tls = UpstreamTls::new();
    let gateway = tls.gateway(OriginBehavior::AnswerOnce, "").await;
    for reached in [1, 3] {
        assert_eq!(gateway.get("/open", "").await.status, 200);
        // The second request finds a closed connection.
        assert_eq!(gateway.origin.seen().len(), reached);
    }
    let gateway = tls.gateway(OriginBehavior::AnswerOnce, "").await;
    let post = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(gateway.send(post).await.status, 200);
    assert_eq!(gateway.send(post).await.status, 502, "not sent twice");
    assert_eq!(gateway.origin.seen().len(), 2);
}

#[tokio::test]
async fn upstream_that_falls_back_to_http1_is_refused() {
    let tls = UpstreamTls::new();
    let gateway = tls.gateway(OriginBehavior::Answer, "http2 = true").await;
    let refused = gateway.get("/open", "").await;
    assert_eq!(refused.problem(), "502 upstream_failed");
    assert_eq!(gateway.origin.seen(), [""; 0], "nothing is sent");
}
