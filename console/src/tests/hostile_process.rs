//! A process that an attacker controls: what it answers costs the console little, and tells it nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use http::{StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;

use crate::testing::{Answers, Console, Received, principal, serve, stub};

/// Maximum duration of a request.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a console over a process that verifies tokens, and answers everything else by `answer`.
async fn before<A, R>(answer: A) -> Console
where
    A: Fn() -> R + Clone + Send + Sync + 'static,
    R: IntoResponse,
{
    let verify = |Json(body): Json<Value>| async move { principal(&body) };
    let answer = move || {
        let response = answer().into_response();
        async move { response }
    };
    let router = Router::new()
        .route("/admin/principal", post(verify))
        .fallback(answer);
    let process = serve(router).await;
    Console::before(&process, vec![process.clone()], Arc::default(), None).await
}

async fn get(console: &Console, path: &str) -> (StatusCode, String) {
    let answer = tokio::time::timeout(STEP_TIMEOUT, console.get(path, "operator")).await;
    answer.expect("an answer in time")
}

#[tokio::test]
async fn endless_refusal_of_a_gateway_is_cut() {
    let console = before(|| {
        let chunks = stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(4 << 10)));
        (StatusCode::FORBIDDEN, Body::from_stream(chunks))
    })
    .await;
    let (status, text) = get(&console, "/live/requests").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let expected = "403: the response is larger than 64 KiB";
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn answer_with_too_many_values_is_not_parsed() {
    // Parsed, these 2 MiB would take more than half a gigabyte.
    let console = before(|| format!("{{\"routes\":[{}0]}}", "{\"\":0},".repeat(300_000))).await;
    for page in ["routes", "notifications", "sign-ins", "configuration"] {
        let (status, html) = get(&console, &format!("/fragments/{page}")).await;
        assert_eq!(status, StatusCode::OK);
        assert!(html.contains("too many JSON values"), "{page}: {html}");
    }
}

#[tokio::test]
async fn redirect_of_a_process_is_not_followed() {
    let received: Arc<Mutex<Vec<Received>>> = Arc::default();
    let target = stub(Answers::Hostile, Arc::clone(&received)).await;
    for status in [301, 302, 307, 308] {
        let target = target.clone();
        let console = before(move || {
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [(header::LOCATION, target.to_string())])
        })
        .await;
        for path in ["/fragments/routes", "/fragments/sign-ins", "/live/requests"] {
            get(&console, path).await;
        }
    }
    assert_eq!(*received.lock(), Vec::new());
}
