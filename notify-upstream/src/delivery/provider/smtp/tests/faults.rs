//! Tests of faults at each command of a session.

use super::*;
use crate::delivery::provider::codes::tests::{answers, meaning};

/// Leaves the texts of a test to the server, which runs as long as the process.
fn forever(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Returns a client that authenticates, for the answers to AUTH.
fn smtp_with_password(port: u16) -> SmtpProvider {
    let config = SmtpConfig {
        credentials: Some(("postern".to_owned(), Secret::from("sesame"))),
        ..smtp(port).config
    };
    client(config)
}

#[tokio::test]
async fn answers_of_mail_servers_are_understood() {
    let mut wrong = Vec::new();
    for answer in answers().filter(|answer| answer.provider == "smtp") {
        let server = server(Script::Say(answer.stage, forever(&answer.text))).await;
        let smtp = smtp_with_password(server.port);
        let refusal = send(&smtp, &content("x")).await.expect_err("refused");
        let found = meaning(&refusal);
        if found != answer.meaning {
            let (stage, text) = (answer.stage, &answer.text);
            wrong.push(format!("{stage} {text}: {found}, not {}", answer.meaning));
        }
        let detail = refusal.detail.unwrap_or_default();
        assert!(!detail.contains("ada@"), "{detail}");
        let is_kept = smtp.idle.pop().is_some();
        let is_open = !matches!(answer.stage, "EHLO" | "AUTH") && !answer.text.starts_with("421");
        assert_eq!(is_kept, is_open, "{}", answer.text);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn lost_or_silent_connection_has_its_own_code_after_the_message() {
    // Short enough for a test, and long enough for a loaded machine.
    let timeouts = SmtpTimeouts {
        connect: Duration::from_secs(20),
        prelude: Duration::from_secs(10),
        dot: Duration::from_secs(4),
    };
    let cases = [
        ("EHLO", "provider"),
        ("AUTH", "provider"),
        ("MAIL", "provider"),
        ("RCPT", "recipient"),
        ("DATA", "recipient"),
        ("DOT", "recipient"),
    ];
    let both = cases.iter().flat_map(|&(verb, scope)| {
        let (dropped, hung) = match verb {
            "DOT" => ("connection_broken", "provider_timeout"),
            _ => ("provider_unreachable", "provider_unreachable"),
        };
        [
            (Script::Drop(verb), dropped, scope),
            (Script::Hang(verb), hung, scope),
        ]
    });
    let sent = both.map(|(script, code, scope)| async move {
        let expected = format!("transient {code} {scope}");
        let server = server(script).await;
        let smtp = client(SmtpConfig {
            timeouts,
            ..smtp_with_password(server.port).config
        });
        let refusal = send(&smtp, &content("x")).await.expect_err("refused");
        assert_eq!(meaning(&refusal), expected, "{script:?}");
        assert!(smtp.idle.pop().is_none(), "{script:?}");
    });
    futures_util::future::join_all(sent).await;
}

/// Replies that no server should send, and what they mean.
#[tokio::test]
async fn reply_is_read_within_bounds_and_as_bytes() {
    let unreachable = "transient provider_unreachable recipient";
    let broken = "transient connection_broken recipient";
    let unknown = "permanent mailbox_unknown recipient suppress";
    let refused = "permanent provider_refused recipient";
    let rejected = "configuration provider_authentication_failed provider";
    let (lines, long) = (b"250-a\r\n".repeat(10_000), b"a".repeat(1_000));
    let long_lines = [&b"250-"[..], &long, b"\r\n"].concat().repeat(80);
    let long_line = [&b"250 "[..], &long, &long].concat();
    for (verb, reply, expected) in [
        ("RCPT", &b"550 5.1.1 Empf\xe4nger unbekannt"[..], unknown),
        ("DOT", b"554 Nachricht \xfcber", refused),
        ("RCPT", b"550 5.1.1 a\0b", unknown),
        ("AUTH", b"535 \xc3\xdc\xc2\xeb", rejected),
        ("AUTH", b"334 ", "transient provider_unreachable provider"),
        ("DATA", b"250 2.0.0 Ok", unreachable),
        ("DOT", &lines, broken),
        ("RCPT", &lines, unreachable),
        ("DOT", &long.repeat(1_000), broken),
        ("DOT", &long_line, broken),
        ("DOT", b"hello", broken),
        ("DOT", b"650 what", broken),
        ("DOT", &long_lines, broken),
    ] {
        let server = server(Script::Bytes(verb, reply.to_vec().leak())).await;
        let smtp = smtp_with_password(server.port);
        let refusal = send(&smtp, &content("x")).await.expect_err("refused");
        let start = String::from_utf8_lossy(&reply[..reply.len().min(40)]).into_owned();
        assert_eq!(meaning(&refusal), expected, "{verb} {start}");
        let detail = refusal.detail.expect("a detail");
        assert!(!detail.contains('\0') && detail.len() < 8_000, "{detail}");
    }
}

#[tokio::test]
async fn bare_greeting_and_old_spelling_of_auth_are_accepted() {
    for (verb, reply) in [
        ("GREETING", "220"),
        ("EHLO", "250-test\r\n250 AUTH=LOGIN PLAIN"),
        ("EHLO", "250-test\r\n250-AUTH LOGIN\r\n250 8BITMIME"),
        ("EHLO", "250-test\r\n250 auth login"),
        ("DOT", "250"),
    ] {
        let server = server(Script::Say(verb, reply)).await;
        send(&smtp_with_password(server.port), &content("x"))
            .await
            .expect(reply);
    }
    for offer in ["250 AUTH XOAUTH2", "250 8BITMIME"] {
        let server = server(Script::Say("EHLO", offer)).await;
        let smtp = smtp_with_password(server.port);
        let refusal = send(&smtp, &content("x")).await.expect_err("no mechanism");
        assert_eq!(
            meaning(&refusal),
            "configuration provider_authentication_failed provider"
        );
    }
}

/// A server that says 421, or closes the connection, at the second message of a connection.
#[tokio::test]
async fn end_of_a_reused_connection_is_a_new_connection_at_once() {
    for (verb, reply) in [
        ("MAIL", "421 Too many messages in this connection"),
        ("MAIL", "450 4.7.1 Error: too many messages"),
        ("MAIL", "452 4.5.3 too many messages in this connection"),
        ("RSET", "421 4.4.2 idle"),
        ("RCPT", "421 4.7.0 Try again later, closing connection"),
        ("DATA", "421 closing"),
        ("DOT", "421 4.3.2 closing"),
        ("MAIL", ""),
        ("RCPT", ""),
        ("DATA", ""),
    ] {
        let server = server(Script::Second(verb, reply)).await;
        let smtp = smtp(server.port);
        for message in 0..6 {
            let sent = send(&smtp, &content("x")).await;
            assert!(sent.is_ok(), "{verb} {reply} {message}: {sent:?}");
        }
        let counts = (server.caught.lock().await.len(), server.connections());
        assert_eq!(counts, (6, 6), "{verb}");
    }
}
