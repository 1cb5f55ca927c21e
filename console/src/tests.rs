//! Tests of the console against stub processes.

mod configuration;
mod hostile_process;
mod interface;
mod live_tail;
mod sign_in;

use std::time::Duration;

use futures_util::stream;
use http::{Method, StatusCode};
use postern_core::testing::CapturedLog;
use serde_json::json;

use crate::shell;
use crate::testing::{Answers, Console, HOSTILE, Received, SECRET};

/// Every fragment with parameters that make it ask for all that it can show.
const FRAGMENTS: &[&str] = &[
    "overview",
    "processes",
    "search?q=ada@example.com",
    "search?q=019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11",
    "requests",
    "routes?request=GET%20/x&q=",
    "upstreams",
    "configuration",
    "history",
    "history/3",
    "notifications",
    "notifications/019aa0c4?message=shown",
    "dead-letters?code=bounced",
    "providers",
    "templates",
    "templates/welcome?channel=email",
    "suppression",
    "users?email=ada",
    "users/6f1c7a52-0d0a-4a0e-9c0e-3a8f2f6f8a11",
    "sign-ins",
];

/// Returns the text that a browser shows of a fragment, without that of its fields.
fn shown(html: &str) -> String {
    let parts = html.split("<textarea").map(|part| {
        let after = part.split_once("</textarea>");
        after.map_or(part, |(_, rest)| rest)
    });
    let html: String = parts.collect();
    let texts = html.split('<').map(|part| part.split_once('>'));
    texts.flatten().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn editor_names_lines_with_hidden_characters() {
    let console = Console::start(Answers::Hostile).await;
    let expected = "line 1: [U+202E]";
    let (_, html) = console.get("/fragments/configuration", "viewer").await;
    assert!(html.contains(expected), "{html}");
    let textarea = html.split("<textarea").nth(1).expect("an editor");
    assert!(textarea.contains("&gt;\u{202e}</textarea>"), "{textarea}");
    let url = format!("{}/check-configuration", console.base);
    for (text, is_named) in [("# a\u{202e}b\n", true), ("# آب\n", false)] {
        let body = json!({ "text": text });
        let request = console
            .client
            .post(&url)
            .bearer_auth("operator")
            .json(&body);
        let checked = request.send().await.expect("sent").text().await;
        let checked = checked.expect("a body");
        assert_eq!(checked.contains(expected), is_named, "{checked}");
    }
}

#[tokio::test]
async fn hostile_text_is_escaped_on_every_page() {
    let console = Console::start(Answers::Hostile).await.sampled().await;
    for fragment in FRAGMENTS {
        let path = format!("/fragments/{fragment}");
        let (status, html) = console.get(&path, "operator").await;
        assert_eq!(status, StatusCode::OK, "{fragment}: {html}");
        assert!(
            html.starts_with("<h1 tabindex=\"-1\">"),
            "{fragment}: {html}"
        );
        for broken in ["<script", "<img", "<b>", "\"'><"] {
            assert!(
                !html.contains(broken),
                "{fragment} contains {broken}: {html}"
            );
        }
        assert!(!shown(&html).contains('\u{202e}'), "{fragment}: {html}");
        let is_shown = html.contains("&lt;script&gt;");
        let has_data = *fragment != "requests";
        assert!(
            is_shown || !has_data,
            "{fragment} does not show the answers: {html}"
        );
    }
    let query = url::form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect::<String>();
    for fragment in [
        "search?q=",
        "notifications?recipient=",
        "routes?q=",
        "notifications/",
        "templates/",
        "history/",
    ] {
        let (_, html) = console
            .get(&format!("/fragments/{fragment}{query}"), "viewer")
            .await;
        assert!(
            !html.contains("<script") && !html.contains("<img"),
            "{fragment}: {html}"
        );
    }
}

#[tokio::test]
async fn role_decides_who_sees_and_who_changes() {
    let console = Console::start(Answers::Hostile).await;
    let change = json!({ "target": "n-1" });
    let cases = [
        ("viewer", 200, 403),
        ("service", 200, 403),
        ("operator", 200, 200),
        ("stranger", 403, 403),
        ("impostor", 403, 403),
        ("foreigner", 403, 403),
        ("unknown-pool", 403, 403),
        ("expired", 401, 401),
    ];
    for (token, sees, changes) in cases {
        let (status, html) = console.get("/fragments/notifications/n-1", token).await;
        assert_eq!(status.as_u16(), sees, "{token}: {html}");
        assert_eq!(html.contains("data-action"), changes == 200, "{token}");
        let (status, answer) = console
            .post("/actions/notification.retry", token, &change)
            .await;
        assert_eq!(status.as_u16(), changes, "{token}: {answer}");
    }
    let (status, _) = console.get("/fragments/overview", "").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(console.changes().len(), 1);
}

#[tokio::test]
async fn message_is_shown_to_operators_who_ask_and_logged() {
    let (log, _guard) = CapturedLog::start();
    let console = Console::start(Answers::Hostile).await;
    let previews = || {
        let calls = console.received.lock();
        let previews = calls.iter().filter(|call| call.uri.ends_with("/preview"));
        previews.cloned().collect::<Vec<_>>()
    };
    let event = ["console action", "notification.read_message", "s-1", "n-1"];
    for (path, token, expected) in [
        ("notifications/n-1", "viewer", "requires the role operator"),
        (
            "notifications/n-1?message=shown",
            "viewer",
            "requires the role operator",
        ),
        ("notifications/n-1", "operator", "Show the message"),
    ] {
        let (_, html) = console.get(&format!("/fragments/{path}"), token).await;
        assert!(
            html.contains(expected) && !html.contains("HTML source"),
            "{html}"
        );
        assert_eq!(
            (previews(), log.with(&event)),
            (vec![], 0),
            "{path} {token}"
        );
    }
    let (_, html) = console
        .get("/fragments/notifications/n-1?message=shown", "operator")
        .await;
    assert!(html.contains("HTML source"), "{html}");
    let read = previews().pop().expect("a call");
    assert_eq!(read.operator.as_deref(), Some("s-1"), "for its own log");
    assert_eq!(log.with(&event), 1, "{}", log.text());
}

#[tokio::test]
async fn message_is_framed_once_in_an_origin_of_its_own() {
    let console = Console::start(Answers::Hostile).await;
    let preview = "/fragments/templates/welcome?channel=email";
    let (_, html) = console.get(preview, "viewer").await;
    let path = html.split("<iframe class=\"message\" src=\"").nth(1);
    let path = path.and_then(|rest| rest.split_once('"')).expect("a frame");
    assert!(path.1.contains("sandbox=\"\""), "{html}");
    let url = format!("{}{}", console.base, path.0);
    let frame = console.client.get(&url).send().await.expect("sent");
    let policy = &frame.headers()["content-security-policy"];
    let policy = policy.to_str().expect("a text");
    assert!(
        policy.starts_with("sandbox; default-src 'none'; "),
        "{policy}"
    );
    assert_eq!(frame.headers()["x-frame-options"], "SAMEORIGIN");
    assert_eq!(frame.text().await.expect("a body"), HOSTILE);
    let again = console.client.get(&url).send().await.expect("sent");
    assert_eq!(again.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn change_is_one_call_with_the_operator_and_a_log_event() {
    let (log, _guard) = CapturedLog::start();
    let console = Console::start(Answers::Hostile).await;
    let body = json!({ "target": "../a/b?c#d", "to": "ada@example.com" });
    let (status, answer) = console
        .post("/actions/provider.test", "operator", &body)
        .await;
    assert_eq!(
        (status, &answer["isDone"]),
        (StatusCode::OK, &json!(true)),
        "{answer}"
    );
    let expected = Received {
        method: Method::POST,
        uri: "/admin/providers/..%2Fa%2Fb%3Fc%23d/test".to_owned(),
        operator: Some("s-1".to_owned()),
        authorization: Some(format!("Bearer {SECRET}")),
        forwarded_for: None,
        body: json!({ "to": "ada@example.com" }),
    };
    assert_eq!(console.changes(), [expected]);
    assert_eq!(
        log.with(&["console action", "provider.test", "s-1"]),
        1,
        "{}",
        log.text()
    );
    for secret in [SECRET, "ada@example.com"] {
        assert_eq!(log.with(&[secret]), 0, "{}", log.text());
    }
}

#[tokio::test]
async fn identifier_cannot_select_another_admin_route() {
    let console = Console::start(Answers::Hostile).await.sampled().await;
    for page in [
        "notifications/%2e%2e",
        "notifications/%2E",
        "history/%2e%2e",
        "users/%2e%2e",
    ] {
        // Written by hand, because clients remove such segments.
        let request = format!(
            "GET /fragments/{page} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer operator\r\n\
             Connection: close\r\n\r\n"
        );
        let answer = console.send(&request).await;
        assert!(answer.contains("an identifier must not be"), "{answer}");
    }
    for target in [".", ".."] {
        let change = json!({ "target": target });
        let path = "/actions/notification.retry";
        let (_, answer) = console.post(path, "operator", &change).await;
        assert_eq!(answer["isDone"], false, "{target}: {answer}");
    }
    let samples = ["/metrics", "/readyz", "/admin/info", "/admin/principal"];
    let mut calls = console.received.lock().clone();
    calls.retain(|call| !samples.contains(&call.uri.as_str()));
    assert_eq!(calls, []);
}

#[tokio::test]
async fn provider_is_paused_with_a_reason_and_resumed() {
    let console = Console::start(Answers::Hostile).await;
    let pause = json!({ "target": "smtp", "reason": "wrong sender" });
    let resume = json!({ "target": "smtp" });
    for (name, body, expected) in [
        (
            "provider.pause",
            &pause,
            json!({ "reason": "wrong sender" }),
        ),
        ("provider.resume", &resume, json!({})),
    ] {
        let path = format!("/actions/{name}");
        let (status, answer) = console.post(&path, "operator", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let made = console.changes().pop().expect("a change");
        let uri = format!("/admin/{}", name.replace("provider.", "providers/smtp/"));
        assert_eq!((made.uri, made.body), (uri, expected));
        let (status, _) = console.post(&path, "viewer", body).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    let (_, page) = console.get("/fragments/providers", "operator").await;
    assert!(page.contains("provider.resume"), "{page}");
    assert!(page.contains("Paused by &lt;script&gt;"), "{page}");
    let (_, page) = console.get("/fragments/providers", "viewer").await;
    assert!(!page.contains("provider.resume"), "{page}");
}

#[tokio::test]
async fn field_that_an_action_does_not_take_is_refused() {
    let console = Console::start(Answers::Hostile).await;
    let cases = [
        (
            "notification.retry",
            json!({ "target": "n", "x": "1" }),
            422,
        ),
        ("notification.retry", json!({}), 422),
        ("notification.retry", json!({ "target": "a\u{0}b" }), 422),
        (
            "dead.retry",
            json!({ "selector": "[]", "dryRun": "true" }),
            422,
        ),
        (
            "dead.retry",
            json!({ "selector": "{}", "dryRun": "perhaps" }),
            422,
        ),
        ("provider.test", json!({ "target": "p", "to": ["a"] }), 422),
        ("shell.run", json!({ "target": "p" }), 404),
    ];
    for (name, body, expected) in cases {
        let (status, answer) = console
            .post(&format!("/actions/{name}"), "operator", &body)
            .await;
        assert_eq!(status.as_u16(), expected, "{name} {body}: {answer}");
    }
    assert!(console.changes().is_empty());
}

#[tokio::test]
async fn body_is_not_read_before_its_sender_is_known() {
    let console = Console::start(Answers::Hostile).await;
    let paths = [
        "/actions/notification.retry",
        "/check-configuration",
        "/configuration/changes",
        "/request-details",
    ];
    for path in paths {
        for (token, expected) in [("", 401), ("expired", 401), ("stranger", 403)] {
            // Neither the type nor the length is looked at.
            let url = format!("{}{path}", console.base);
            let request = console.client.post(url).body("x".repeat(3 << 20));
            let request = match token {
                "" => request,
                token => request.bearer_auth(token),
            };
            let response = request.send().await.expect("an answer");
            assert_eq!(response.status().as_u16(), expected, "{path} {token}");
        }
    }
    for path in ["/session/sign-in", "/session/exchange"] {
        for (length, expected) in [(4 << 10, 400), ((4 << 10) + 1, 413)] {
            let body = format!("[\"{}\"]", "x".repeat(length - 4));
            let chunks = stream::iter([Ok::<_, std::io::Error>(body.clone())]);
            for body in [body.into(), reqwest::Body::wrap_stream(chunks)] {
                let url = format!("{}{path}", console.base);
                let request = console.client.post(url).body(body);
                let request = request.header("content-type", "application/json");
                let response = request.send().await.expect("an answer");
                assert_eq!(response.status().as_u16(), expected, "{path} {length}");
            }
        }
    }
}

#[tokio::test]
async fn verification_is_used_again_for_five_seconds() {
    let console = Console::start(Answers::Hostile).await;
    for _ in 0..3 {
        assert_eq!(console.get("/session", "viewer").await.0, StatusCode::OK);
    }
    assert_eq!(console.verifications(), 1);
    console.clock.advance(Duration::from_secs(5));
    assert_eq!(console.get("/session", "viewer").await.0, StatusCode::OK);
    assert_eq!(console.verifications(), 2);
    // A rejection is not remembered.
    for _ in 0..2 {
        assert_eq!(
            console.get("/session", "expired").await.0,
            StatusCode::UNAUTHORIZED
        );
    }
    assert_eq!(console.verifications(), 4);
}

#[tokio::test]
async fn every_response_restricts_scripts_and_frames() {
    let console = Console::start(Answers::Hostile).await;
    let (_, html) = console.get("/", "").await;
    let script = html
        .split("src=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let script = script.expect("a script").to_owned();
    let icon = shell::asset_path("icon.svg").to_owned();
    assert_eq!(html.matches(&icon).count(), 2, "icon and mark");
    let pages = shell::pages();
    let mut paths: Vec<String> = pages.map(|(path, ..)| (*path).to_owned()).collect();
    paths.extend([
        script,
        icon,
        "/fragments/overview".to_owned(),
        "/actions/x".to_owned(),
        "/livez".to_owned(),
        "/nothing".to_owned(),
    ]);
    // The last is the answer to DNS rebinding.
    let own = console.base.trim_start_matches("http://");
    let requests = paths.iter().map(|path| (path.as_str(), own));
    for (path, host) in requests.chain([("/", "evil.example")]) {
        let request = console.client.get(format!("{}{path}", console.base));
        let response = request.header("host", host).send().await.expect("sent");
        let rebound = response.status() == StatusCode::BAD_REQUEST;
        assert_eq!(rebound, host != own, "{path}");
        let header = |name: &str| {
            let value = response.headers().get(name);
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{path}: {policy}"
        );
        let is_open = policy.contains("unsafe") || policy.contains("data:");
        assert!(!is_open, "{path}: {policy}");
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        let expected = [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("set-cookie", ""),
        ];
        for (name, value) in expected {
            assert_eq!(header(name), value, "{path} {name}");
        }
    }
    assert!(
        !html.contains("style=") && !html.contains("onclick"),
        "inline style or handler"
    );
}
