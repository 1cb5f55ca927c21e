//! An HTTP API of a provider that records requests.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use http::StatusCode;
use parking_lot::Mutex;
use url::Url;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) body: String,
}

/// A running API. Each response has `Retry-After: 30`.
pub(crate) struct RecordedApi {
    pub(crate) base: Url,
    pub(crate) requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl RecordedApi {
    /// Starts an API; `respond` returns status and body of the response to the last of the requests.
    pub(crate) async fn start(
        respond: impl Fn(&[ReceivedRequest]) -> (u16, String) + Clone + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&requests);
        let handler = move |request: Request| {
            let (known, respond) = (Arc::clone(&known), respond.clone());
            async move {
                let (head, body) = request.into_parts();
                let authorization = head.headers.get("authorization");
                let authorization = authorization.and_then(|value| value.to_str().ok());
                let body = axum::body::to_bytes(body, 1 << 16).await.expect("a body");
                let mut known = known.lock();
                known.push(ReceivedRequest {
                    path: head.uri.path().to_owned(),
                    authorization: authorization.unwrap_or_default().to_owned(),
                    body: String::from_utf8(body.to_vec()).expect("valid UTF-8"),
                });
                let (status, body) = respond(&known);
                let status = StatusCode::from_u16(status).expect("a status");
                (status, [("retry-after", "30")], body)
            }
        };
        let url = super::serve(Router::new().fallback(handler)).await;
        let base = url.parse().expect("URL");
        Self { base, requests }
    }
}
