//! Tests of sign-in: the one-time link, limits of attempts, and origins.

use super::*;
use crate::testing::LINK_SECRET;

/// Rejected attempts of one network within a minute.
const MAX_ATTEMPTS: usize = 20;

async fn session_of(console: &Console) -> String {
    let (status, link) = console.post("/session/link", LINK_SECRET, &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{link}");
    let (status, answer) = console.post("/session/exchange", "", &link).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn one_time_link_is_valid_once_and_its_session_for_12_hours() {
    let console = Console::start(Answers::Hostile).await;
    let wrong = json!({ "secret": "0".repeat(64) });
    assert_eq!(
        console.post("/session/exchange", "", &wrong).await.0,
        StatusCode::UNAUTHORIZED
    );
    let right = json!({ "secret": console.once.expose() });
    let (status, answer) = console.post("/session/exchange", "", &right).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let token = answer["token"].as_str().expect("a token").to_owned();
    assert_eq!(
        console.post("/session/exchange", "", &right).await.0,
        StatusCode::UNAUTHORIZED
    );
    let (_, session) = console.get("/session", &token).await;
    assert!(session.contains("operator"), "{session}");
    console.clock.advance(Duration::from_secs(12 * 3600 - 1));
    assert_eq!(console.get("/session", &token).await.0, StatusCode::OK);
    console.clock.advance(Duration::from_secs(1));
    assert_eq!(
        console.get("/session", &token).await.0,
        StatusCode::UNAUTHORIZED
    );
    let forged = format!("postern-console-{}", "0".repeat(64));
    assert_eq!(
        console.get("/session", &forged).await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(console.calls_with(&token), 0, "sent to no process");
    assert_eq!(console.verifications(), 0, "not verified by the gateway");
}

#[tokio::test]
async fn sign_in_passes_the_answer_of_the_service_on() {
    let console = Console::start(Answers::Hostile).await;
    let body = json!({ "email": "ada@example.com", "password": "right" });
    let (status, answer) = console.post("/session/sign-in", "", &body).await;
    assert_eq!(
        (status, answer["token"].as_str()),
        (StatusCode::OK, Some("operator"))
    );
    let body = json!({ "email": "ada@example.com", "password": "wrong" });
    let (status, answer) = console.post("/session/sign-in", "", &body).await;
    assert_eq!(
        (status.as_u16(), answer["code"].as_str()),
        (401, Some("invalid_credentials"))
    );
}

#[tokio::test]
async fn service_learns_the_address_of_the_browser() {
    let console = Console::start(Answers::Hostile).await;
    let sign_in = json!({ "email": "ada@example.com", "password": "right" });
    // The test is a trusted proxy: what it received from its client is not to be believed.
    for (sent, expected) in [
        (None, "127.0.0.1"),
        (Some("192.0.2.7"), "192.0.2.7"),
        (Some("198.51.100.1, 192.0.2.8"), "192.0.2.8"),
        (Some("2001:db8::7"), "2001:db8::7"),
    ] {
        let url = format!("{}/session/sign-in", console.base);
        let mut request = console.client.post(url).json(&sign_in);
        if let Some(sent) = sent {
            request = request.header("x-forwarded-for", sent);
        }
        assert_eq!(request.send().await.expect("sent").status(), StatusCode::OK);
        let calls = console.received.lock();
        let call = calls.iter().rfind(|call| call.uri == "/auth/login");
        let forwarded = call.and_then(|call| call.forwarded_for.as_deref());
        assert_eq!(forwarded, Some(expected), "{sent:?}");
    }
}

#[tokio::test]
async fn links_are_created_with_the_secret_of_the_installation() {
    let console = Console::start(Answers::Hostile).await;
    for token in ["operator", SECRET, "x"] {
        let (status, _) = console.post("/session/link", token, &json!({})).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token}");
    }
    session_of(&console).await;
    let first = json!({ "secret": console.once.expose() });
    let (status, answer) = console.post("/session/exchange", "", &first).await;
    assert_eq!(
        (status.as_u16(), answer["code"].as_str()),
        (401, Some("invalid_temporary_token")),
        "replaced by the second link"
    );
    let (_, page) = console.get("/", "").await;
    assert!(page.contains("postern console-link"), "{page}");
}

#[tokio::test]
async fn session_of_the_console_is_never_sent_to_the_gateway() {
    let console = Console::start(Answers::Hostile).await;
    let session = session_of(&console).await;
    for page in ["overview", "routes", "notifications"] {
        let (status, _) = console.get(&format!("/fragments/{page}"), &session).await;
        assert_eq!(status, StatusCode::OK, "{page}");
    }
    assert_eq!(console.calls_with(&session), 0);
}

#[tokio::test]
async fn rejected_sign_ins_of_a_network_are_limited() {
    let (log, _guard) = CapturedLog::start();
    let console = Console::start(Answers::Hostile).await;
    let wrong = json!({ "email": "ada@example.com", "password": "wrong" });
    let right = json!({ "email": "ada@example.com", "password": "right" });
    // A token that was accepted before stays usable.
    assert_eq!(console.get("/session", "viewer").await.0, StatusCode::OK);
    let session = session_of(&console).await;
    for n in 0..MAX_ATTEMPTS {
        let (status, _) = match n % 4 {
            0 => console.post("/session/sign-in", "", &wrong).await,
            1 => (console.get("/session", "guessed").await.0, json!(null)),
            2 => (
                console.get("/session", "postern-console-x").await.0,
                json!(null),
            ),
            _ => {
                let body = json!({ "secret": "0".repeat(64) });
                console.post("/session/exchange", "", &body).await
            }
        };
        assert_eq!(status, StatusCode::UNAUTHORIZED, "attempt {n}");
        // One that succeeds is not counted.
        let (status, _) = console.post("/session/sign-in", "", &right).await;
        assert!(status == StatusCode::OK || n + 1 == MAX_ATTEMPTS, "{n}");
    }
    for (path, body) in [
        ("/session/sign-in", right.clone()),
        (
            "/session/exchange",
            json!({ "secret": console.once.expose() }),
        ),
    ] {
        let url = format!("{}{path}", console.base);
        let response = console.client.post(url).json(&body).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
        assert_eq!(response.headers()["retry-after"], "61", "{path}");
    }
    for (token, expected) in [("operator2", 429), ("viewer", 200), (session.as_str(), 200)] {
        let (status, _) = console.get("/session", token).await;
        assert_eq!(status.as_u16(), expected, "{token}");
    }
    assert_eq!(
        log.with(&["WARN", "sign-in attempts limited", "127.0.0.0"]),
        1,
        "{}",
        log.text()
    );
    for secret in [&*session, console.once.expose(), LINK_SECRET, "ada@"] {
        assert_eq!(log.with(&[secret]), 0, "{}", log.text());
    }
    console.clock.advance(Duration::from_secs(60));
    let (status, _) = console.post("/session/sign-in", "", &right).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn change_of_another_origin_or_host_is_rejected() {
    let console = Console::start(Answers::Hostile).await;
    let authority = console.base.strip_prefix("http://").expect("a base");
    let own = console.base.clone();
    let tls = format!("https://{authority}");
    let port = console.base.replace("127.0.0.1:", "127.0.0.1:1");
    let body = json!({ "email": "ada@example.com", "password": "right" });
    for (header, value, expected) in [
        ("origin", own.as_str(), 200),
        ("origin", tls.as_str(), 200),
        ("origin", port.as_str(), 400),
        ("origin", "http://127.0.0.1", 400),
        ("origin", "http://evil.example", 400),
        ("origin", "null", 400),
        ("origin", "ftp://127.0.0.1", 400),
        ("host", "evil.example", 400),
    ] {
        let url = format!("{}/session/sign-in", console.base);
        let request = console.client.post(url).header(header, value).json(&body);
        let status = request.send().await.expect("an answer").status();
        assert_eq!(status.as_u16(), expected, "{header}: {value}");
    }
    // A form of another site cannot send JSON.
    let url = format!("{}/session/exchange", console.base);
    let form = console
        .client
        .post(url)
        .body("{}")
        .header("content-type", "text/plain");
    let status = form.send().await.expect("an answer").status();
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}
