//! Answers to WebSocket requests before the upgrade, and upstreams that do not speak HTTP/2
//! although they should.

use super::*;

/// Starts a gateway before an origin that answers so. Returns it, and a request for an upgrade.
async fn gateway(answer: &'static str) -> (TestGateway, String) {
    let no_ejection = "[upstream.origin.outlier]\nfailures = 0\n";
    let gateway = TestGateway::with(OriginBehavior::Text(answer), "", no_ejection).await;
    let token = gateway.user();
    let upgrade = format!(
        "GET /socket HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer {token}\r\n{UPGRADE}\r\n"
    );
    (gateway, upgrade)
}

#[tokio::test]
async fn malformed_answer_to_an_upgrade_is_refused() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nraw bytes",
    ] {
        let (gateway, upgrade) = gateway(answer).await;
        let refused = gateway.send(&upgrade).await;
        assert_eq!(refused.problem(), "502 upstream_failed", "{answer:?}");
    }
}

#[tokio::test]
async fn refusal_of_an_upgrade_is_forwarded() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
    ] {
        let (gateway, upgrade) = gateway(answer).await;
        let mut client = gateway.connect().await;
        let mut got = client.ask(&upgrade).await;
        if got.status == 103 {
            got = client.answer().await;
        }
        assert_eq!((got.status, got.body.as_str()), (403, "no"), "{answer:?}");
    }
}

#[tokio::test]
async fn upstream_that_falls_back_to_http1_is_refused() {
    let tls = UpstreamTls::new();
    let gateway = tls.gateway(OriginBehavior::Answer, "http2 = true").await;
    let refused = gateway.get("/open", "").await;
    assert_eq!(refused.problem(), "502 upstream_failed");
    assert!(gateway.origin.seen().is_empty(), "nothing is sent");
    let events = gateway.finish().await;
    assert_members(
        &events[0],
        &json!({ "status": 502, "code": "upstream_failed" }),
    );
}
