//! Servers in place of the accounts that guides need.

use std::process::Stdio;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio_util::task::AbortOnDropHandle;

use super::peer;

/// moto, an independent implementation of Cognito's API.
pub(super) struct Moto {
    /// The address of the API.
    pub(super) url: String,
    _process: Child,
}

/// A mail server that requires TLS and a user (aiosmtpd).
pub(super) struct SmtpServer {
    /// The port on the loopback.
    pub(super) port: u16,
    /// File with the certificate of the server.
    pub(super) authority: String,
    mails: tokio::sync::Mutex<Lines<BufReader<ChildStdout>>>,
    _process: Child,
    _folder: TempDir,
}

/// An HTTP server that accepts messages as the API of Twilio does.
pub(super) struct TwilioApi {
    /// The address of the API.
    pub(super) base: String,
    messages: Arc<Mutex<Vec<String>>>,
    _server: AbortOnDropHandle<()>,
}

/// An HTTP server that issues tokens as Google does, and accepts messages as FCM does.
pub(super) struct FcmApi {
    /// The address of both.
    pub(super) base: String,
    _server: AbortOnDropHandle<()>,
}

// === impl Moto ===

impl Moto {
    pub(super) async fn start() -> Self {
        let mut command = Command::new(peer("boto3/python/bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command
            .kill_on_drop(true)
            .spawn()
            .expect("moto is installed: tests/run installs it");
        let stderr = process.stderr.take().expect("standard error is piped");
        let mut lines = BufReader::new(stderr).lines();
        let url = line_with(&mut lines, "Running on ").await;
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            url,
            _process: process,
        }
    }
}

/// Returns what follows `text` in the first line that contains it.
async fn line_with<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>, text: &str) -> String {
    while let Some(line) = lines.next_line().await.expect("the output is UTF-8") {
        if let Some((_, rest)) = line.split_once(text) {
            return rest.trim().to_owned();
        }
    }
    panic!("the program ended before it printed {text:?}");
}

// === impl SmtpServer ===

impl SmtpServer {
    pub(super) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .expect("a certificate");
        let (authority, key) = (folder.path().join("ca.pem"), folder.path().join("key.pem"));
        std::fs::write(&authority, made.cert.pem()).expect("the folder can be written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("the folder can be written");
        let server = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/notify/smtp.py");
        let mut process = Command::new(peer("notify/python/bin/python"))
            .arg(server)
            .args([&authority, &key])
            .args(["postern", "the password"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("aiosmtpd is installed: tests/run installs it");
        let mut mails = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let port = line_with(&mut mails, "port ").await;
        Self {
            port: port.parse().expect("a port"),
            authority: authority.display().to_string(),
            mails: tokio::sync::Mutex::new(mails),
            _process: process,
            _folder: folder,
        }
    }

    /// Returns the next accepted message.
    pub(super) async fn next_mail(&self) -> Value {
        let line = self.mails.lock().await.next_line().await;
        let line = line.expect("the output is UTF-8").expect("a message");
        serde_json::from_str(&line).expect("JSON")
    }
}

// === impl TwilioApi ===

impl TwilioApi {
    pub(super) async fn start() -> Self {
        let messages = Arc::new(Mutex::new(Vec::new()));
        let router = Router::new()
            .route("/2010-04-01/Accounts/{account}/Messages.json", post(accept))
            .with_state(Arc::clone(&messages));
        let (base, server) = serve(router).await;
        Self {
            base,
            messages,
            _server: server,
        }
    }

    /// Returns the accepted messages, as forms.
    pub(super) fn messages(&self) -> Vec<String> {
        self.messages.lock().clone()
    }
}

async fn accept(
    State(messages): State<Arc<Mutex<Vec<String>>>>,
    form: String,
) -> (StatusCode, String) {
    messages.lock().push(form);
    let body = r#"{"sid":"SM5ef8732a3c49700934481addd5ce1659","status":"queued"}"#;
    (StatusCode::CREATED, body.to_owned())
}

// === impl FcmApi ===

impl FcmApi {
    pub(super) async fn start() -> Self {
        let token = r#"{"access_token":"ya29.guide","expires_in":3599,"token_type":"Bearer"}"#;
        let sent = r#"{"name":"projects/example/messages/0:1795629328544"}"#;
        // axum has no parameter with a suffix, so that the method `:send` is a part of it.
        let router = Router::new()
            .route("/token", post(move || async move { token }))
            .route(
                "/v1/projects/example/{method}",
                post(move || async move { sent }),
            );
        let (base, server) = serve(router).await;
        Self {
            base,
            _server: server,
        }
    }
}

/// Serves a router on a free loopback port, and returns its address.
async fn serve(router: Router) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("the loopback has a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let served = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    (base, AbortOnDropHandle::new(served))
}
