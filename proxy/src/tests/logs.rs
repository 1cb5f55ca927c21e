//! Log events about failing upstreams.

use super::*;

#[tokio::test]
async fn connect_error_is_logged_with_its_cause() {
    let (log, _guard) = CapturedLog::start();
    let upstream =
        "addresses = [\"127.0.0.1:1\"]\nretries = 0\n[upstream.origin.outlier]\nfailures = 0";
    let gateway = TestGateway::routed(OriginBehavior::Answer, upstream, "", ROUTES).await;
    for _ in 0..2 {
        let answer = gateway.get("/open", "").await;
        assert_eq!(answer.problem(), "503 upstream_unavailable");
        let id = answer.header("x-request-id").expect("an id");
        let words = [
            "upstream attempt failed",
            id,
            "127.0.0.1:1",
            "ConnectRefused",
            "Connection refused",
        ];
        assert_eq!(log.with(&words), 1, "{}", log.text());
    }
    let failed = "upstream attempt failed";
    assert_eq!(
        (log.with(&[failed, " WARN "]), log.with(&[failed, "DEBUG "])),
        (1, 1),
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn failed_exchange_is_logged_without_response_bytes() {
    for (behavior, reason) in [
        (OriginBehavior::Close, "closed"),
        (
            OriginBehavior::Text(
                "HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\nContent-Length: x\r\n\r\n",
            ),
            "invalid",
        ),
    ] {
        let (log, _guard) = CapturedLog::start();
        let gateway = TestGateway::with(behavior, "", "retries = 0").await;
        assert_eq!(gateway.get("/open", "").await.code(), "upstream_failed");
        let failed = log.text().to_ascii_lowercase();
        let mut failed = failed
            .lines()
            .filter(|line| line.contains("upstream attempt failed"));
        let line = failed.next().expect("one line");
        assert!(line.contains(reason) && failed.next().is_none(), "{line}");
        let own = log
            .text()
            .lines()
            .filter(|line| line.contains("postern_proxy"))
            .collect::<String>();
        assert!(!own.contains("secret"), "{own}");
    }
}

#[tokio::test]
async fn request_without_an_available_address_is_logged() {
    let (log, _guard) = CapturedLog::start();
    let nowhere = TestGateway::routed(
        OriginBehavior::Answer,
        "addresses = [\"no-such-name.invalid:1\"]",
        "",
        ROUTES,
    )
    .await;
    assert_eq!(
        nowhere.get("/open", "").await.code(),
        "upstream_unavailable"
    );
    let words = ["no upstream address available", "no name is resolved"];
    assert_eq!(log.with(&words), 1, "{}", log.text());
}

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

#[tokio::test]
async fn cause_of_a_failed_tls_connection_is_logged() {
    let plain_text = scripted_origin::start(|mut connection| async move {
        connection.send("this is not TLS at all\r\n\r\n").await;
    });
    let silent = TestOrigin::start(OriginBehavior::Hang).await;
    let tls = "retries = 0\nconnect_timeout = \"300ms\"\n[upstream.origin.tls]\nname = \"origin\"";
    for (address, code, cause) in [
        (silent.address, "upstream_timeout", "ConnectTimedout"),
        (plain_text.await, "upstream_failed", "TLSHandshakeFailure"),
    ] {
        let (log, _guard) = CapturedLog::start();
        let gateway = scripted_origin::gateway(&[address], tls, "").await;
        let answer = gateway.get("/open", "").await;
        assert_eq!(answer.code(), code);
        let (id, address) = (answer.header("x-request-id"), address.to_string());
        let id = id.expect("an id");
        let words = ["upstream attempt failed", " WARN ", id, &address, cause];
        assert_eq!(log.with(&words), 1, "{}", log.text());
    }
}
