//! Tests against an independent mail server, without encryption and with STARTTLS and
//! authentication, with a fault at each command.

use std::path::Path;

use postern_core::Secret;
use std::process::Stdio;

use futures_util::future::join_all;
use tokio::io::{BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::*;
use crate::testing::judge;

/// An aiosmtpd process, which ends when dropped.
struct Peer {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    port: u16,
}

impl Peer {
    async fn start(peers: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(peers.join("mail"));
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the server starts");
        let mut lines =
            BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
        let first = lines
            .next_line()
            .await
            .expect("valid UTF-8")
            .expect("the server prints its port");
        let port = first
            .strip_prefix("port ")
            .and_then(|port| port.parse().ok())
            .expect("a port");
        Self {
            _child: child,
            lines,
            port,
        }
    }

    async fn taken(&mut self) -> serde_json::Value {
        let line = self
            .lines
            .next_line()
            .await
            .expect("valid UTF-8")
            .expect("a message was accepted");
        serde_json::from_str(&line).expect("JSON")
    }
}

/// Timeouts that are short enough for a test and long enough for a loaded machine.
const SHORT_TIMEOUTS: SmtpTimeouts = SmtpTimeouts {
    connect: Duration::from_secs(20),
    prelude: Duration::from_secs(10),
    dot: Duration::from_secs(4),
};

/// Creates a self-signed certificate of `localhost` and its key.
async fn certificate(folder: &Path) -> [String; 2] {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args([
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .args(["-keyout", &key, "-out", &cert])
        .output()
        .await
        .expect("openssl runs");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    [cert, key]
}

/// Returns the outcome of a message for each fault, sent concurrently.
async fn outcomes(cases: Vec<(String, SmtpProvider)>) -> Vec<(String, FailureClass, String)> {
    let sent = cases.into_iter().map(|(name, smtp)| async move {
        let refusal = send(&smtp, &content("x")).await.expect_err(&name);
        assert!(
            refusal.class == FailureClass::Permanent
                || smtp.idle.pop().is_none()
                || !name.contains("drop"),
            "{name}"
        );
        (name, refusal.class, refusal.code)
    });
    join_all(sent).await
}

fn expected(verb: &str, action: &str) -> (FailureClass, &'static str) {
    let before = matches!(verb, "ehlo" | "starttls" | "auth");
    match (verb, action) {
        ("dot", "hang") => (FailureClass::Transient, "provider_timeout"),
        ("dot", "drop") => (FailureClass::Transient, "connection_broken"),
        (_, "hang" | "drop") => (FailureClass::Transient, "provider_unreachable"),
        (_, "451") => (FailureClass::Transient, "provider_busy"),
        (_, "554") if before => (FailureClass::Configuration, "provider_turns_us_away"),
        ("mail", _) => (FailureClass::Configuration, "sender_refused"),
        _ => (FailureClass::Permanent, "provider_refused"),
    }
}

#[tokio::test]
async fn aiosmtpd_accepts_messages_and_its_faults_are_classified() {
    let Some(peers) = judge::installed("aiosmtpd_accepts_messages_and_its_faults_are_classified")
    else {
        return;
    };
    let mut peer = Peer::start(&peers, &[]).await;
    let plain = |ehlo_name: &str| {
        let config = SmtpConfig {
            ehlo_name: ehlo_name.to_owned(),
            timeouts: SHORT_TIMEOUTS,
            ..smtp(peer.port).config
        };
        client(config)
    };
    let mut cases = Vec::new();
    let mut wanted = Vec::new();
    for verb in ["ehlo", "mail", "rcpt", "data", "dot"] {
        for action in ["451", "554", "hang", "drop"] {
            let name = format!("{verb}.{action}.test");
            cases.push((name.clone(), plain(&name)));
            let (class, code) = expected(verb, action);
            wanted.push((name, class, code.to_owned()));
        }
    }
    let good = plain("good.example");
    assert_eq!(outcomes(cases).await, wanted);
    send(&good, &content("Hello Ada\r\n.\r\nthere"))
        .await
        .expect("no error");
    let taken = peer.taken().await;
    assert_eq!(
        (&taken["from"], &taken["to"]),
        (
            &"postern@example.org".into(),
            &vec!["ada@example.com"].into()
        )
    );
    assert_eq!(
        (&taken["hello"], &taken["tls"]),
        (&"good.example".into(), &false.into()),
        "no other message is accepted"
    );
}

/// Returns a text as it arrives: with uniform line endings and without characters that are not
/// text.
fn as_text(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[tokio::test]
async fn hostile_strings_arrive_unchanged_as_one_message() {
    let Some(peers) = judge::installed("hostile_strings_arrive_unchanged_as_one_message") else {
        return;
    };
    let mut peer = Peer::start(&peers, &[]).await;
    let smtp = smtp(peer.port);
    let mut heads = None;
    for text in naughty() {
        send(&smtp, &content(&text)).await.expect("no error");
        let taken = peer.taken().await;
        assert_eq!(
            taken["to"],
            serde_json::json!(["ada@example.com"]),
            "{text:?}"
        );
        let read = taken["text"]
            .as_str()
            .expect("a part of plain text")
            .replace("\r\n", "\n");
        assert_eq!(
            read.trim_end_matches('\n'),
            as_text(&text).trim_end_matches('\n'),
            "{text:?}"
        );
        assert_eq!(
            heads.get_or_insert_with(|| taken["heads"].clone()),
            &taken["heads"],
            "{text:?}"
        );
    }
    send(&smtp, &content("the last")).await.expect("no error");
    assert_eq!(
        peer.taken().await["text"].as_str().map(str::trim),
        Some("the last"),
        "no other session is opened"
    );
}

#[tokio::test]
async fn aiosmtpd_requires_trusted_tls_for_its_name() {
    let Some(peers) = judge::installed("aiosmtpd_requires_trusted_tls_for_its_name") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [cert, key] = certificate(folder.path()).await;
    let mut peer = Peer::start(&peers, &[&cert, &key, "postern", "sesame"]).await;
    let ca_pem = Some(std::fs::read(&cert).expect("the file was created"));
    let private = |ehlo_name: &str, password: &str, ca_pem: Option<Vec<u8>>| {
        let config = SmtpConfig {
            host: "localhost".to_owned(),
            tls: TlsMode::StartTls,
            ca_pem,
            credentials: Some(("postern".to_owned(), Secret::from(password))),
            ehlo_name: ehlo_name.to_owned(),
            timeouts: SHORT_TIMEOUTS,
            ..smtp(peer.port).config
        };
        SmtpProvider::new(config, ErrorCodeTable::shipped()).expect("a certificate")
    };
    let mut cases = Vec::new();
    let mut wanted = Vec::new();
    for (verb, action) in [
        ("starttls", "451"),
        ("starttls", "drop"),
        ("auth", "451"),
        ("auth", "554"),
        ("auth", "hang"),
    ] {
        let name = format!("{verb}.{action}.test");
        cases.push((name.clone(), private(&name, "sesame", ca_pem.clone())));
        let (class, code) = expected(verb, action);
        wanted.push((name, class, code.to_owned()));
    }
    let configuration = |name: &str, code: &str| {
        (
            name.to_owned(),
            FailureClass::Configuration,
            code.to_owned(),
        )
    };
    cases.push((
        "wrong password".to_owned(),
        private("a.example", "open", ca_pem.clone()),
    ));
    wanted.push(configuration(
        "wrong password",
        "provider_authentication_failed",
    ));
    cases.push((
        "unknown authority".to_owned(),
        private("b.example", "sesame", None),
    ));
    wanted.push(configuration("unknown authority", "provider_tls_failed"));
    let good = private("good.example", "sesame", ca_pem);
    assert_eq!(outcomes(cases).await, wanted);
    for _ in 0..2 {
        send(&good, &content("Hello Ada")).await.expect("no error");
        let taken = peer.taken().await;
        let seen = (&taken["hello"], &taken["tls"], &taken["user"]);
        assert_eq!(
            seen,
            (&"good.example".into(), &true.into(), &"postern".into())
        );
    }
}
