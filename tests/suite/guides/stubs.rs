//! Servers in place of the accounts that guides need.

use postern_harness::paths::{peer, repository};
use postern_harness::peer::Peer;
use postern_harness::{Origin, json};
use serde_json::Value;
use tempfile::TempDir;

/// A mail server that requires TLS and a user (aiosmtpd).
pub(super) struct SmtpServer {
    /// The port on the loopback.
    pub(super) port: String,
    /// File with the certificate of the server.
    pub(super) authority: String,
    server: Peer,
    _folder: TempDir,
}

impl SmtpServer {
    pub(super) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .expect("a certificate");
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the folder can be written");
            path.display().to_string()
        };
        let authority = write("ca.pem", made.cert.pem());
        let key = write("key.pem", made.signing_key.serialize_pem());
        let script = repository().join("tests/peers/notify/smtp.py");
        let script = script.display().to_string();
        let arguments = [&*script, &*authority, &*key, "postern", "the password"];
        let python = peer("notify/python/bin/python");
        let (server, port) = Peer::start(&python, &arguments, &[], "port ").await;
        Self {
            port,
            authority,
            server,
            _folder: folder,
        }
    }

    /// Returns the next accepted message.
    pub(super) async fn next_mail(&mut self) -> Value {
        loop {
            // Other lines are warnings.
            if let Ok(mail) = serde_json::from_str(&self.server.next_line().await) {
                return mail;
            }
        }
    }
}

/// Starts a server that accepts messages as the API of Twilio does.
pub(super) async fn twilio() -> Origin {
    let sent = json!({"sid": "SM5ef8732a3c49700934481addd5ce1659", "status": "queued"});
    let path = "/2010-04-01/Accounts/";
    Origin::answering(&[(path, 201, sent), ("", 404, json!({}))]).await
}

/// Starts a server that issues tokens as Google does, and accepts messages as FCM does.
pub(super) async fn fcm() -> Origin {
    let token = json!({"access_token": "ya29.guide", "expires_in": 3599, "token_type": "Bearer"});
    let sent = json!({"name": "projects/example/messages/0:1795629328544"});
    let messages = "/v1/projects/example/";
    Origin::answering(&[
        ("/token", 200, token),
        (messages, 200, sent),
        ("", 404, json!({})),
    ])
    .await
}
