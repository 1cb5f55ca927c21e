//! Tests of sign-in: the one-time link, limits of attempts, and origins.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::response::IntoResponse;
use postern_core::decode::defaults;

use super::*;
use crate::config::{Config, SignInConfig};
use crate::link;
use crate::testing::{LINK_SECRET, serve, stub};

/// Rejected attempts of one network within a minute.
const MAX_ATTEMPTS: usize = 20;

fn config_without_processes() -> Config {
    let text = "[[process]]\nkind = 'gateway'\nurls = ['http://127.0.0.1:1']\ntoken_env = 'T'\n";
    let env = postern_core::config::Env::from([("T", SECRET)]);
    let config = postern_core::config::parse("c.toml", text, |root| Config::read(root, &env));
    config.expect("accepted")
}

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
async fn person_may_read_on_while_no_gateway_answers() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let received = Arc::default();
    let stub = stub(Answers::Hostile, Arc::clone(&received)).await;
    let gateway = serve(Router::new().fallback(move || {
        let is_away = away.load(Ordering::Relaxed);
        let person = json!({
            "kind": "user", "subject": "s-1", "actorGroups": ["admin"], "expiresAt": "2027-01-15T08:14:00.000Z",
        });
        async move {
            match is_away {
                true => StatusCode::BAD_GATEWAY.into_response(),
                false => axum::Json(person).into_response(),
            }
        }
    }));
    let console = Console::before(&stub, vec![gateway.await], received, None).await;
    let page = || console.get("/fragments/notifications", "token");
    assert_eq!(page().await.0, StatusCode::OK);
    is_away.store(true, Ordering::Relaxed);
    console.clock.advance(Duration::from_secs(5));
    assert_eq!(page().await.0, StatusCode::OK);
    let (_, session) = console.get("/session", "token").await;
    assert!(session.contains("viewer"), "{session}");
    let (other, _) = console.get("/session", "other").await;
    assert_eq!(other, StatusCode::SERVICE_UNAVAILABLE);
    let own = session_of(&console).await;
    let (_, session) = console.get("/session", &own).await;
    assert!(session.contains("operator"), "a link needs no gateway");
    // The clock began at 08:00: the token ends before the 15 minutes do.
    console.clock.advance(Duration::from_secs(13 * 60));
    assert_eq!(page().await.0, StatusCode::OK);
    console.clock.advance(Duration::from_secs(55));
    assert_eq!(page().await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn link_file_is_private_and_prints_a_link() {
    let file = std::env::temp_dir().join(format!("postern-console-link-{}", std::process::id()));
    let console = Console::start(Answers::Hostile).await;
    let content = format!("{LINK_SECRET}\n{}\n", console.base);
    std::fs::write(&file, content).expect("written");
    let link = link::request(&file).await.expect("a link");
    let (base, secret) = link.expose().split_once("/#once=").expect("a link");
    assert_eq!(base, console.base);
    let secret = json!({ "secret": secret });
    let (status, _) = console.post("/session/exchange", "", &secret).await;
    assert_eq!(status, StatusCode::OK);
    std::fs::write(&file, format!("wrong\n{}\n", console.base)).expect("written");
    assert!(link::request(&file).await.is_err());
    let config = |file: &Path| Config {
        sign_in: SignInConfig {
            link_file: Some(file.to_owned()),
            ..defaults(SignInConfig::read)
        },
        ..config_without_processes()
    };
    let created = link::create_secret(&config(&file)).expect("a secret");
    let written = std::fs::read_to_string(&file).expect("a file");
    assert!(written.starts_with(created.expose()), "{written}");
    let mode = std::fs::metadata(&file)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(link::create_secret(&config(&file.join("link"))).is_none());
    std::fs::remove_file(&file).expect("removed");
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
