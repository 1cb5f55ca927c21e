//! Log events about failing upstreams.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::harness::{PATH_SELECTORS, ROUTES, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// Captures log lines of this thread, the only one of the test's runtime.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("text")
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn capture() -> (CapturedLog, tracing::subscriber::DefaultGuard) {
    let captured = CapturedLog::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(captured.clone())
        .finish();
    (captured, tracing::subscriber::set_default(subscriber))
}

/// Returns the number of lines that contain all words.
fn lines(log: &CapturedLog, words: &[&str]) -> usize {
    log.text()
        .lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}

#[tokio::test]
async fn connect_error_is_logged_with_its_cause() {
    let (log, _guard) = capture();
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream =
        "addresses = [\"127.0.0.1:1\"]\nretries = 0\n[upstream.origin.outlier]\nfailures = 0";
    let gateway = TestGateway::before(unused, upstream, "", ROUTES).await;
    for selector in PATH_SELECTORS {
        let answer = gateway.get("/open", selector).await;
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
        assert_eq!(lines(&log, &words), 1, "{selector} {}", log.text());
    }
    let failed = "upstream attempt failed";
    assert_eq!(
        (
            lines(&log, &[failed, " WARN "]),
            lines(&log, &[failed, "DEBUG "])
        ),
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
        for selector in PATH_SELECTORS {
            let (log, _guard) = capture();
            let gateway = TestGateway::with(behavior, "", "retries = 0").await;
            assert_eq!(
                gateway.get("/open", selector).await.code(),
                "upstream_failed"
            );
            let failed = log.text().to_ascii_lowercase();
            let mut failed = failed
                .lines()
                .filter(|line| line.contains("upstream attempt failed"));
            let line = failed.next().expect("one line");
            assert!(
                line.contains(reason) && failed.next().is_none(),
                "{selector} {line}"
            );
            let own = log
                .text()
                .lines()
                .filter(|line| line.contains("postern_proxy"))
                .collect::<String>();
            assert!(!own.contains("secret"), "{own}");
        }
    }
}

#[tokio::test]
async fn request_without_an_available_address_is_logged() {
    let (log, _guard) = capture();
    let away = TestOrigin::start(OriginBehavior::Answer).await;
    let nowhere =
        TestGateway::before(away, "addresses = [\"no-such-name.invalid:1\"]", "", ROUTES).await;
    assert_eq!(
        nowhere.get("/open", "").await.code(),
        "upstream_unavailable"
    );
    let words = ["no upstream address available", "no name is resolved"];
    assert_eq!(lines(&log, &words), 1, "{}", log.text());
}
