//! Tests against an independent mail server, without encryption and with STARTTLS and
//! authentication.

use std::path::Path;

use postern_core::Secret;
use postern_core::testing::assert_members;
use std::process::Stdio;

use serde_json::json;
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
        let output = child.stdout.take().expect("standard output is piped");
        let mut peer = Self {
            _child: child,
            lines: BufReader::new(output).lines(),
            port: 0,
        };
        let first = peer.line().await;
        let port = first.strip_prefix("port ").map(str::parse);
        peer.port = port.expect("a port").expect("a number");
        peer
    }

    async fn line(&mut self) -> String {
        let line = self.lines.next_line().await.expect("valid UTF-8");
        line.expect("the server prints its port, and each message that it takes")
    }

    async fn taken(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.line().await).expect("JSON")
    }
}

/// Creates a self-signed certificate of `localhost` and its key.
async fn certificate(folder: &Path) -> [String; 2] {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name).display().to_string());
    let subject = "-subj /CN=localhost -addext subjectAltName=DNS:localhost";
    let arguments = format!(
        "req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -addext basicConstraints=critical,CA:FALSE"
    );
    let made = Command::new("openssl")
        .args(arguments.split(' '))
        .args(["-keyout", &key, "-out", &cert])
        .output()
        .await
        .expect("openssl runs");
    let messages = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{messages}");
    [cert, key]
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
    let test = "hostile_strings_arrive_unchanged_as_one_message";
    let Some(peers) = judge::installed(test) else {
        return;
    };
    let mut peer = Peer::start(&peers, &[]).await;
    let smtp = smtp(peer.port);
    let mut heads = None;
    for text in naughty() {
        send(&smtp, &content(&text)).await.expect("no error");
        let taken = peer.taken().await;
        let expected =
            json!({"from": "postern@example.org", "to": ["ada@example.com"], "tls": false});
        assert_members(&taken, &expected);
        let read = taken["text"].as_str().expect("a part of plain text");
        let (read, given) = (read.replace("\r\n", "\n"), as_text(&text));
        let [read, given] = [&read, &given].map(|it| it.trim_end_matches('\n'));
        assert_eq!(read, given, "{text:?}");
        let heads = heads.get_or_insert_with(|| taken["heads"].clone());
        assert_eq!(*heads, taken["heads"], "{text:?}");
    }
    send(&smtp, &content("the last")).await.expect("no error");
    let last = peer.taken().await;
    let text = last["text"].as_str().map(str::trim);
    assert_eq!(text, Some("the last"), "no other session is opened");
}

#[tokio::test]
async fn aiosmtpd_requires_trusted_tls_for_its_name() {
    let test = "aiosmtpd_requires_trusted_tls_for_its_name";
    let Some(peers) = judge::installed(test) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [cert, key] = certificate(folder.path()).await;
    let mut peer = Peer::start(&peers, &[&cert, &key, "postern", "sesame"]).await;
    let ca_pem = Some(std::fs::read(&cert).expect("the file was created"));
    let private = |password: &str, ca_pem: Option<Vec<u8>>| {
        let config = SmtpConfig {
            host: "localhost".to_owned(),
            tls: TlsMode::StartTls,
            ca_pem,
            credentials: Some(("postern".to_owned(), Secret::from(password))),
            ..smtp(peer.port).config
        };
        client(config)
    };
    let good = private("sesame", ca_pem.clone());
    for (client, expected) in [
        (private("open", ca_pem), "provider_authentication_failed"),
        (private("sesame", None), "provider_tls_failed"),
    ] {
        let refusal = send(&client, &content("x")).await.expect_err(expected);
        let found = (refusal.class, refusal.code.as_str());
        assert_eq!(found, (FailureClass::Configuration, expected));
    }
    for _ in 0..2 {
        send(&good, &content("Hello Ada")).await.expect("no error");
        let taken = peer.taken().await;
        let expected = json!({"hello": "example.org", "tls": true, "user": "postern"});
        assert_members(&taken, &expected);
    }
}
