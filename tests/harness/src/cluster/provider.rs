//! A provider of text messages that records every call.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use http::StatusCode;
use tokio::net::TcpListener;

use super::history::{Event, History};

/// Starts the provider and returns its URL.
pub(super) async fn start(history: Arc<History>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new()
        .route("/messages", post(deliver))
        .with_state(history);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn deliver(State(history): State<Arc<History>>, request: Request) -> StatusCode {
    let id = request.headers().get("idempotency-key");
    let Some(id) = id.and_then(|id| id.to_str().ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    let id = id.to_owned();
    history.record(history.now_ms(), Event::Deliver { id });
    StatusCode::ACCEPTED
}
