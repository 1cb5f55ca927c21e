//! Log events about failing upstreams.

use std::net::SocketAddr;

use postern_core::testing::CapturedLog;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

#[tokio::test]
async fn connect_error_is_logged_with_its_cause() {
    let (log, _guard) = CapturedLog::start();
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream =
        "addresses = [\"127.0.0.1:1\"]\nretries = 0\n[upstream.origin.outlier]\nfailures = 0";
    let gateway = TestGateway::before(unused, upstream, "", ROUTES).await;
    for _ in 0..2 {
        let answer = gateway.get("/open", "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (503, "upstream_unavailable")
        );
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
    let away = TestOrigin::start(OriginBehavior::Answer).await;
    let nowhere =
        TestGateway::before(away, "addresses = [\"no-such-name.invalid:1\"]", "", ROUTES).await;
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
        held.write("GET /open HTTP/1.1\r\nHost: gate\r\n\r\n").await;
        let sent = async {
            while gateway.origin.seen().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, sent)
            .await
            .expect("a request in flight");
        for level in [" WARN ", "DEBUG "] {
            let answer = gateway.get("/open", "").await;
            assert_eq!(answer.code(), "upstream_unavailable");
            let id = answer.header("x-request-id").expect("an id");
            let words = ["no upstream address available", reason, id, level];
            assert_eq!(log.with(&words), 1, "{}", log.text());
        }
    }
}

const DEADLINE_ROUTE: &str = "[[route]]\npath = \"/open\"\nmethods = [\"GET\"]\n\
                              upstream = \"origin\"\npolicy = \"public\"\ndeadline = \"200ms\"\n";

/// Starts a server that answers each connection with text that is not TLS.
async fn plain_text_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _gone = stream.write_all(b"this is not TLS at all\r\n\r\n").await;
        }
    });
    address
}

#[tokio::test]
async fn each_cause_of_a_failed_attempt_is_logged() {
    const TLS: &str = "connect_timeout = \"300ms\"\n[upstream.origin.tls]\nname = \"origin\"";
    let mut missing = Vec::new();
    for (is_silent, upstream, routes, code, cause) in [
        (
            true,
            "read_timeout = \"150ms\"",
            ROUTES,
            "upstream_timeout",
            "timed out",
        ),
        (true, "", DEADLINE_ROUTE, "upstream_timeout", "timed out"),
        (true, TLS, ROUTES, "upstream_timeout", "ConnectTimedout"),
        (
            false,
            TLS,
            ROUTES,
            "upstream_failed",
            "TLSHandshakeFailure: TLS connect() failed",
        ),
    ] {
        let (log, _guard) = CapturedLog::start();
        let origin = TestOrigin::start(OriginBehavior::Hang).await;
        let address = match is_silent {
            true => origin.address,
            false => plain_text_server().await,
        };
        let upstream = format!("addresses = [\"{address}\"]\nretries = 0\n{upstream}");
        let gateway = TestGateway::before(origin, &upstream, "", routes).await;
        let answer = gateway.get("/open", "").await;
        let (id, address) = (answer.header("x-request-id"), address.to_string());
        let id = id.expect("an id");
        let words = ["upstream attempt failed", " WARN ", id, &address, cause];
        if answer.code() != code || log.with(&words) != 1 {
            let text = log.text();
            let failed = text
                .lines()
                .filter(|line| line.contains("upstream attempt failed"));
            let failed = failed.collect::<String>();
            missing.push((upstream, answer.code(), failed));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
