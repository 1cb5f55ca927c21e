//! The page Requests: the merged live tail, and the details of a request.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::testing::{Answers, Console, HOSTILE, LINK_SECRET};

/// Maximum duration of a step: the token is checked every 5 s.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

async fn open(console: &Console, query: &str, token: &str) -> reqwest::Response {
    let url = format!("{}/live/requests?{query}", console.base);
    let request = console.client.get(url).bearer_auth(token);
    request.send().await.expect("an answer")
}

/// Reads until the text occurs. Returns everything that was read.
async fn read_until(stream: &mut reqwest::Response, wanted: &str) -> String {
    let mut text = String::new();
    let reading = async {
        while !text.contains(wanted) {
            let chunk = stream.chunk().await.expect("a stream");
            text.push_str(&String::from_utf8_lossy(&chunk.expect("not the end")));
        }
    };
    let read = tokio::time::timeout(STEP_TIMEOUT, reading).await;
    read.expect("the text in time");
    text
}

#[tokio::test]
async fn tails_of_gateways_are_merged_and_named() {
    let console = Console::start(Answers::Hostile).await;
    let mut stream = open(&console, "route=orders&status=5xx", "viewer").await;
    assert_eq!(stream.status(), StatusCode::OK);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let text = read_until(&mut stream, "event: dropped").await;
    let events: Vec<&str> = text.split("\n\n").collect();
    let gateway = events
        .iter()
        .find(|event| event.starts_with("event: gateway"));
    let gateway = gateway.expect("a gateway");
    assert!(gateway.contains("\"isFollowed\":true"), "{gateway}");
    let at = |name: &str| {
        let prefix = format!("event: {name}\ndata: ");
        let mut events = events.iter().enumerate();
        let found = events.find_map(|(at, event)| Some((at, event.strip_prefix(&prefix)?)));
        found.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let ((source_at, source), (request_at, request)) = (at("source"), at("request"));
    assert!(source_at < request_at, "{text}");
    assert!(source.contains("127.0.0.1:"), "{source}");
    let request: Value = serde_json::from_str(request).expect("JSON");
    assert_eq!(request["path"], HOSTILE);
    let calls = console.received.lock().clone();
    let call = calls
        .iter()
        .find(|call| call.uri.starts_with("/admin/requests"));
    let call = call.expect("a call");
    assert_eq!(call.uri, "/admin/requests?route=orders&status=5xx");
    assert_eq!(
        call.operator.as_deref(),
        Some("s-1"),
        "for the gateway's log"
    );
}

#[tokio::test]
async fn tail_is_refused_with_the_reason() {
    let console = Console::start(Answers::Hostile).await;
    let refused = open(&console, "status=9xx", "viewer").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let text = refused.text().await.expect("a body");
    assert!(text.contains("?status must be a status"), "{text}");
    for (token, status) in [("stranger", 403), ("expired", 401)] {
        assert_eq!(open(&console, "", token).await.status(), status, "{token}");
    }
    let older = Console::start(Answers::Older).await;
    let refused = open(&older, "", "viewer").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let text = refused.text().await.expect("a body");
    assert!(text.contains("does not offer a live tail"), "{text}");
}

#[tokio::test]
async fn person_follows_two_tails_at_most() {
    let console = Console::start(Answers::Hostile).await;
    let first = open(&console, "", "viewer").await;
    let _second = open(&console, "", "viewer").await;
    // The operator of the stubs is the same subject.
    for token in ["viewer", "operator"] {
        let third = open(&console, "", token).await;
        assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS, "{token}");
        assert_eq!(third.headers()["retry-after"], "5", "{token}");
    }
    let other = open(&console, "", "service").await;
    assert_eq!(other.status(), StatusCode::OK, "of another subject");
    drop(first);
    let again = async { while open(&console, "", "viewer").await.status() != StatusCode::OK {} };
    let again = tokio::time::timeout(STEP_TIMEOUT, again).await;
    again.expect("the place of a page that was closed");
}

/// Returns the token of a new session of a one-time link.
async fn session(console: &Console) -> String {
    let (_, link) = console.post("/session/link", LINK_SECRET, &json!({})).await;
    let secret = json!({ "secret": link["secret"] });
    let (_, session) = console.post("/session/exchange", "", &secret).await;
    session["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn sessions_of_links_have_tails_of_their_own() {
    let console = Console::start(Answers::Hostile).await;
    let (first, second) = (session(&console).await, session(&console).await);
    let mut streams = Vec::new();
    for token in [&first, &first, &second, &second] {
        let stream = open(&console, "", token).await;
        assert_eq!(stream.status(), StatusCode::OK);
        streams.push(stream);
    }
    for token in [&first, &second] {
        let third = open(&console, "", token).await;
        assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn tail_ends_when_its_token_is_not_accepted_any_more() {
    let console = Console::start(Answers::Hostile).await;
    let secret = json!({ "secret": console.once.expose() });
    let (_, session) = console.post("/session/exchange", "", &secret).await;
    let token = session["token"].as_str().expect("a token");
    let mut stream = open(&console, "", token).await;
    read_until(&mut stream, "event: request").await;
    let url = format!("{}/session", console.base);
    let signed_out = console.client.delete(url).bearer_auth(token).send().await;
    assert_eq!(signed_out.expect("sent").status(), StatusCode::NO_CONTENT);
    let ending = async { while let Ok(Some(_)) = stream.chunk().await {} };
    let ended = tokio::time::timeout(STEP_TIMEOUT, ending).await;
    ended.expect("the stream ends with the session");
}

#[tokio::test]
async fn details_explain_the_request_and_escape_everything() {
    let console = Console::start(Answers::Hostile).await;
    let event = json!({
        "timestamp": HOSTILE, "request_id": HOSTILE, "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "method": "GET", "path": format!("/{HOSTILE}"), "host": "gate", "route": HOSTILE, "status": 403,
        "code": HOSTILE, "cause": HOSTILE, "kind": "user", "subject": HOSTILE, "issuer": HOSTILE,
        "groups": [HOSTILE], "scopes": [HOSTILE], "upstream": HOSTILE, "upstream_address": HOSTILE,
        "decision": "forwarded", "duration_ms": 12.5, "upstream_ms": 12.0, "gateway": HOSTILE,
    });
    let url = format!("{}/request-details", console.base);
    let request = console.client.post(url).bearer_auth("viewer").json(&event);
    let response = request.send().await.expect("sent");
    assert_eq!(response.status(), StatusCode::OK);
    let html = response.text().await.expect("a body");
    for broken in ["<script", "<img", "<b>", "\"'><"] {
        assert!(!html.contains(broken), "{broken} in {html}");
    }
    for expected in [
        "href=\"https://traces.example/0af7651916cd43dd8448eb211c80319c?x=&lt;b&gt;\"",
        "href=\"/search?kind=request&amp;q=%3Cscript",
        "[[test]]",
        "decision = &quot;insufficient_scope&quot;",
        "Issuer</dt><dd><span class=\"mono\">&lt;script&gt;",
        "12.5 ms",
        "12 ms",
        "took another route",
    ] {
        assert!(html.contains(expected), "{expected} is missing in {html}");
    }
    let calls = console.received.lock().clone();
    let asked = calls.iter().find(|call| call.uri == "/admin/explain");
    let asked = &asked.expect("a question").body;
    assert_eq!(asked["request"], format!("GET /{HOSTILE}"));
    assert_eq!(asked["principal"]["groups"][0], HOSTILE);
    let rejected = json!({ "status": 400, "code": "invalid_request" });
    let (status, _) = console.post("/request-details", "expired", &rejected).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, _) = console.post("/request-details", "viewer", &json!([])).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}
