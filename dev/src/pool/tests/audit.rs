use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use super::harness::{EMAIL, PASSWORD, start};

/// Captures log output of the current thread.
#[derive(Clone, Default)]
struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn audit_log_has_outcome_and_no_secret() {
    let lines = LogCapture::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let mut pool = start().await;
    let sub = pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    pool.sign_in(EMAIL, "Wrong-Horse-9")
        .await
        .expect_err("rejected");
    let actor = pool.actor().clone();
    pool.forgot(EMAIL).await.expect("sent");
    let code = pool.codes.recv().await.expect("a code").code;
    drop(guard);
    let log = String::from_utf8(lines.0.lock().clone()).expect("UTF-8");
    let line = |operation: &str, outcome: &str| {
        log.lines()
            .find(|line| {
                line.contains(&format!("\"{operation}\""))
                    && line.contains(&format!("\"{outcome}\""))
            })
            .unwrap_or_else(|| panic!("no line about {operation} {outcome} in:\n{log}"))
            .to_owned()
    };
    assert!(line("InitiateAuth", "ok").contains(&sub));
    let refused = line("InitiateAuth", "NotAuthorizedException");
    assert!(
        refused.contains(&sub) && refused.contains("request_id"),
        "{refused}"
    );
    assert!(line("AdminConfirmSignUp", "ok").contains("\"administrator\""));
    let secret = actor.client_secret.clone().expect("a secret");
    let hash = actor.secret_hash(EMAIL).expect("a hash");
    let refresh = tokens.refresh_token().expect("refresh token");
    let access = tokens.access_token().expect("access token");
    let (password, key) = (
        pool.account("auth"),
        pool.provisioned.secret_access_key.clone(),
    );
    let secrets = [
        PASSWORD,
        "Wrong-Horse-9",
        EMAIL,
        code.expose(),
        secret.expose(),
        &hash,
        refresh,
        access,
    ];
    for secret in secrets.into_iter().chain([password.expose(), key.expose()]) {
        assert!(!log.contains(secret), "the log has `{secret}`");
    }
}
