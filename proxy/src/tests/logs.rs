//! Log events about failing upstreams.

use super::*;

#[tokio::test]
async fn failed_exchange_is_logged_without_response_bytes() {
    let invalid = "HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\nContent-Length: x\r\n\r\n";
    for (behavior, reason) in [
        (OriginBehavior::Close, "closed"),
        (OriginBehavior::Text(invalid), "invalid"),
    ] {
        let (log, _guard) = CapturedLog::start();
        let gateway = TestGateway::with(behavior, "", "retries = 0").await;
        assert_eq!(gateway.get("/open", "").await.code(), "upstream_failed");
        let text = log.text().to_ascii_lowercase();
        let failed = text
            .lines()
            .filter(|line| line.contains("upstream attempt failed"));
        let failed: Vec<&str> = failed.collect();
        assert!(
            failed.len() == 1 && failed[0].contains(reason),
            "{failed:?}"
        );
        assert_eq!(log.with(&["postern_proxy", "secret"]), 0, "{}", log.text());
    }
}

/// Of failures in a row, the first is a warning.
#[tokio::test]
async fn request_beyond_the_capacity_is_logged() {
    for (limits, reason) in [
        ("", "the client has an eighth of it"),
        (
            "trusted_proxies = [\"127.0.0.0/8\"]",
            "every address has as many requests in flight as in_flight allows",
        ),
    ] {
        let (log, _guard) = CapturedLog::start();
        let gateway = TestGateway::with(OriginBehavior::Hang, limits, "in_flight = 1").await;
        let mut held = gateway.connect().await;
        held.write(GET).await;
        wait_until(async || !gateway.origin.seen().is_empty()).await;
        for level in [" WARN ", "DEBUG "] {
            let answer = gateway.get("/open", "").await;
            assert_eq!(answer.code(), "upstream_unavailable");
            let id = answer.header("x-request-id").expect("an id");
            let words = ["no upstream address available", reason, id, level];
            assert_eq!(log.with(&words), 1, "{}", log.text());
        }
    }
}
