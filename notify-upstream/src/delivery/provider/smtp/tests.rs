//! Tests against aiosmtpd ([`peer`]) and against a scripted server.

mod encoded;
mod faults;
mod peer;
mod unverified;

use std::sync::Arc;

use postern_core::Secret;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::*;
use crate::address::hash;
use crate::delivery::mail_token::TokenPurpose;
use crate::delivery::pool::MAX_CALL_DURATION;
use crate::delivery::provider::call::CALL_TIMEOUT;
use crate::delivery::retry::FailureClass;
use crate::notification::NotificationId;
use crate::testing::injection::naughty;
use crate::testing::{mail_tokens as tokens, mailbox, outgoing};

/// The response of the server to a command; others are accepted.
#[derive(Clone, Copy, Debug)]
enum Script {
    Yes,
    /// Responds to this command (`DOT` is the end of the message) with this line.
    Say(&'static str, &'static str),
    /// Closes the connection at this command.
    Drop(&'static str),
    /// Says nothing to this command.
    Hang(&'static str),
    /// The same with bytes.
    Bytes(&'static str, &'static [u8]),
    /// Responds to the second of this command on a connection; closes it if the line is empty.
    Second(&'static str, &'static str),
}

/// A message as received by the server: the lines of the envelope, and the data with dots.
#[derive(Clone, Debug, Default)]
struct Caught {
    envelope: Vec<String>,
    data: String,
}

struct Server {
    port: u16,
    caught: Arc<Mutex<Vec<Caught>>>,
    connections: Arc<std::sync::atomic::AtomicUsize>,
}

impl Server {
    fn connections(&self) -> usize {
        self.connections.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// The envelope of a message to Ada.
const ENVELOPE: [&str; 2] = [
    "MAIL FROM:<postern@example.org>",
    "RCPT TO:<ada@example.com>",
];

async fn server(script: Script) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let port = listener.local_addr().expect("address").port();
    let (caught, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
    let server = Server {
        port,
        caught: Arc::clone(&caught),
        connections: Arc::clone(&connections),
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::spawn(talk(stream, script, Arc::clone(&caught)));
        }
    });
    server
}

async fn talk(
    stream: TcpStream,
    script: Script,
    caught: Arc<Mutex<Vec<Caught>>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut heard = Vec::new();
    let mut mail = Caught::default();
    let mut line = "GREETING".to_owned();
    loop {
        let first = line.split_whitespace().next();
        let verb = match line.trim_end() {
            "AUTH LOGIN" => "LOGIN".to_owned(),
            _ => first.unwrap_or_default().to_uppercase(),
        };
        if matches!(verb.as_str(), "MAIL" | "RCPT") {
            mail.envelope.push(line.trim_end().to_owned());
        }
        let Some(words) = answer(script, &verb, &mut heard).await else {
            return Ok(());
        };
        stream.write_all(&words).await?;
        if verb == "DATA" && words.starts_with(b"354") {
            while !mail.data.ends_with("\r\n.\r\n") {
                stream.read_line(&mut mail.data).await?;
            }
            let Some(words) = answer(script, "DOT", &mut heard).await else {
                return Ok(());
            };
            stream.write_all(&words).await?;
            let mail = std::mem::take(&mut mail);
            if words.starts_with(b"250") {
                caught.lock().await.push(mail);
            }
        }
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
    }
}

async fn answer(script: Script, verb: &str, heard: &mut Vec<String>) -> Option<Vec<u8>> {
    heard.push(verb.to_owned());
    let before = heard.iter().filter(|known| *known == verb).count() - 1;
    // The first message of a connection is preceded by no RSET.
    let again = before > 0 || verb == "RSET";
    let words = match script {
        Script::Drop(at) if at == verb => return None,
        Script::Hang(at) if at == verb => std::future::pending().await,
        Script::Second(at, "") if at == verb && again => return None,
        Script::Second(at, words) if at == verb && again => words,
        Script::Say(at, words) if at == verb => words,
        Script::Bytes(at, bytes) if at == verb => return Some([bytes, b"\r\n"].concat()),
        Script::Yes
        | Script::Drop(_)
        | Script::Hang(_)
        | Script::Second(..)
        | Script::Say(..)
        | Script::Bytes(..) => match verb {
            "GREETING" => "220 test",
            "EHLO" => "250-test\r\n250-AUTH PLAIN LOGIN\r\n250 8BITMIME",
            "DATA" => "354 go on",
            "LOGIN" | "CG9ZDGVYBG==" => "334",
            "AUTH" | "C2VZYW1L" => "235 2.7.0 Ok",
            _ => "250 2.0.0 Ok",
        },
    };
    Some(format!("{words}\r\n").into_bytes())
}

fn smtp(port: u16) -> SmtpProvider {
    let from = (
        EmailAddress::parse("postern@example.org").expect("address"),
        "Postern".to_owned(),
    );
    let config = SmtpConfig {
        host: "127.0.0.1".to_owned(),
        port,
        tls: TlsMode::None,
        ca_pem: None,
        credentials: None,
        from,
        return_path: None,
        tokens: Some(tokens()),
        ehlo_name: "example.org".to_owned(),
        connections: 4,
        unsubscribe: Some("https://x.example/unsubscribe/".to_owned()),
        timeouts: SmtpTimeouts::default(),
    };
    client(config)
}

fn client(config: SmtpConfig) -> SmtpProvider {
    SmtpProvider::new(config).expect("no certificates are configured")
}

fn id() -> NotificationId {
    NotificationId::parse("0190a5d0-0000-7000-8000-000000000001").expect("an id")
}

/// Returns the token of a message to Ada.
fn token(purpose: TokenPurpose) -> String {
    tokens().issue(purpose, id(), &hash("ada@example.com"))
}

fn content(text: &str) -> MessageContent {
    MessageContent::Email {
        subject: text.replace(['\r', '\n'], " "),
        text: text.to_owned(),
        html: Some(format!("<p>{text}</p>")),
    }
}

async fn send(smtp: &SmtpProvider, content: &MessageContent) -> SendResult {
    let to = mailbox("ada@example.com");
    let message = OutgoingMessage {
        id: id(),
        unsubscribe: true,
        ..outgoing(&to, content)
    };
    smtp.send(&message).await
}

#[tokio::test]
async fn message_arrives_with_headers_and_connection_is_reused() {
    let server = server(Script::Yes).await;
    let smtp = smtp(server.port);
    for _ in 0..3 {
        let taken = send(&smtp, &content("Hello Ada")).await.expect("no error");
        assert_eq!(taken.as_deref(), Some("250 2.0.0 Ok"));
    }
    let caught = server.caught.lock().await.clone();
    assert_eq!((caught.len(), server.connections()), (3, 1));
    assert_eq!(caught[0].envelope, ENVELOPE);
    let data = &caught[0].data;
    let click = token(TokenPurpose::Unsubscribe);
    let folded: String = data.split_whitespace().collect();
    let link = format!("List-Unsubscribe:<https://x.example/unsubscribe/{click}>");
    assert!(folded.contains(&link), "{data}");
    for header in [
        "From: Postern <postern@example.org>",
        &format!("Message-ID: <{}@example.org>", id()),
        "Subject: Hello Ada\r\n",
        "List-Unsubscribe-Post: ",
        "Date: ",
    ] {
        assert!(data.contains(header), "{header} in {data}");
    }
}

#[tokio::test]
async fn dsn_is_requested_under_our_envelope_id() {
    let server = server(Script::Say("EHLO", "250-test\r\n250-8BITMIME\r\n250 DSN")).await;
    let return_path = EmailAddress::parse("bounces@example.org");
    let config = SmtpConfig {
        return_path,
        ..smtp(server.port).config
    };
    let smtp = client(config.clone());
    send(&smtp, &content("Hello Ada")).await.expect("no error");
    let without_key = SmtpConfig {
        tokens: None,
        ..config
    };
    let without_key = client(without_key);
    send(&without_key, &content("Hello Ada"))
        .await
        .expect("no error");
    let caught = server.caught.lock().await.clone();
    let token = token(TokenPurpose::DeliveryReport);
    let mail = format!("MAIL FROM:<bounces+{token}@example.org> RET=HDRS ENVID={token}");
    let rcpt = "RCPT TO:<ada@example.com> NOTIFY=FAILURE,DELAY ORCPT=rfc822;ada@example.com";
    assert_eq!(caught[0].envelope, [&*mail, rcpt]);
    assert!(
        !caught[0].data.contains(&token),
        "only the envelope contains the token"
    );
    let mail = format!("MAIL FROM:<bounces@example.org> RET=HDRS ENVID={}", id());
    assert_eq!(caught[1].envelope, [&*mail, rcpt]);
    let data = &caught[1].data;
    assert!(!data.contains("List-Unsubscribe"), "{data}");
}

#[tokio::test]
async fn server_without_starttls_gets_no_message() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let port = closed.local_addr().expect("address").port();
    drop(closed);
    let refusal = send(&smtp(port), &content("x")).await;
    let refusal = refusal.expect_err("the server is unavailable");
    let found = (refusal.class, refusal.scope);
    assert_eq!(found, (FailureClass::Transient, FaultScope::Provider));
    let server = server(Script::Yes).await;
    let strict = client(SmtpConfig {
        tls: TlsMode::StartTls,
        host: "localhost".to_owned(),
        ..smtp(server.port).config
    });
    let refusal = send(&strict, &content("x")).await;
    let refusal = refusal.expect_err("not protected");
    let found = (refusal.class, refusal.code.as_str());
    assert_eq!(found, (FailureClass::Configuration, "provider_tls_failed"));
    assert!(server.caught.lock().await.is_empty());
}

#[test]
fn calls_end_before_the_maximum_duration() {
    let SmtpTimeouts {
        connect: _,
        prelude,
        dot,
    } = SmtpTimeouts::default();
    assert!(prelude + dot < MAX_CALL_DURATION);
    // FCM requests a token before it sends.
    assert!(2 * CALL_TIMEOUT < MAX_CALL_DURATION);
}

#[tokio::test]
async fn hostile_strings_stay_text() {
    let server = server(Script::Yes).await;
    let smtp = smtp(server.port);
    let strings = naughty();
    for text in &strings {
        send(&smtp, &content(text)).await.expect("no error");
    }
    let caught = server.caught.lock().await;
    assert_eq!(caught.len(), strings.len(), "one message per string");
    for (mail, text) in caught.iter().zip(&strings) {
        assert_eq!(mail.envelope, ENVELOPE, "{text:?}");
        let head = mail.data.split("\r\n\r\n").next().expect("a head");
        let names: Vec<&str> = head
            .lines()
            .filter(|line| !line.starts_with([' ', '\t']))
            .filter_map(|line| line.split(':').next())
            .collect();
        let expected = [
            "From",
            "To",
            "Subject",
            "Message-ID",
            "Date",
            "Auto-Submitted",
            "List-Unsubscribe",
            "List-Unsubscribe-Post",
            "MIME-Version",
            "Content-Type",
        ];
        assert_eq!(names, expected, "{text:?}");
        let ends = mail.data.matches("\r\n.\r\n").count()
            + mail.data.replace("\r\n", "").matches(['\r', '\n']).count();
        assert_eq!(ends, 1, "{text:?} in {:?}", mail.data);
    }
}
