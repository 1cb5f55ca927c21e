//! A reverse proxy of the test in front of a dependency, which can fail as the dependency does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The header that names the operation of a call to the identity pool.
const OPERATION_HEADER: &str = "x-amz-target";

/// What the proxy does with a request.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Forwards it.
    None,
    /// Answers requests of which the path or the operation ends with this text, and forwards others.
    Answer(&'static str, u16, Value),
    /// Never answers.
    Stall,
    /// Forwards it after this time.
    Delay(Duration),
    /// Forwards it, and changes the signature of the ID token in the response.
    ForgeIdToken,
}

/// A proxy on a loopback port.
#[derive(Clone, Debug)]
pub(super) struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: String,
    fault: Mutex<Fault>,
    http: reqwest::Client,
}

impl FaultProxy {
    /// Starts a proxy of a base URL without a path.
    pub(super) async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            target: target.trim_end_matches('/').to_owned(),
            fault: Mutex::new(Fault::None),
            http: reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("a client"),
        });
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shared }
    }

    /// Returns its base URL.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the fault of further requests.
    pub(super) fn set(&self, fault: Fault) {
        *self.shared.fault.lock() = fault;
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let fault = shared.fault.lock().clone();
    let operation = request.headers().get(OPERATION_HEADER);
    let operation = operation
        .and_then(|name| name.to_str().ok())
        .unwrap_or_default();
    match fault {
        Fault::Answer(of, status, body)
            if request.uri().path().ends_with(of) || operation.ends_with(of) =>
        {
            respond(status, &HeaderMap::new(), body.to_string().into())
        }
        Fault::Stall => std::future::pending().await,
        Fault::Delay(time) => {
            let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
            forward(&shared, request, |body| body).await
        }
        Fault::ForgeIdToken => forward(&shared, request, forge).await,
        Fault::None | Fault::Answer(..) => forward(&shared, request, |body| body).await,
    }
}

async fn forward(
    shared: &Shared,
    request: Request<Body>,
    change: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = head.headers;
    remove_framing(&mut headers);
    let sent = shared
        .http
        .request(head.method, format!("{}{path}", shared.target));
    let Ok(answer) = sent.headers(headers).body(body).send().await else {
        return respond(502, &HeaderMap::new(), Vec::new());
    };
    let (status, mut headers) = (answer.status().as_u16(), answer.headers().clone());
    remove_framing(&mut headers);
    let body = answer.bytes().await.unwrap_or_default();
    respond(status, &headers, change(body.to_vec()))
}

fn remove_framing(headers: &mut HeaderMap) {
    for name in ["connection", "content-length", "transfer-encoding"] {
        headers.remove(name);
    }
}

fn respond(status: u16, headers: &HeaderMap, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    *response.headers_mut() = headers.clone();
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().entry("content-type").or_insert(json);
    response
}

/// Changes the first character of the signature.
fn forge(body: Vec<u8>) -> Vec<u8> {
    let Ok(mut body) = serde_json::from_slice::<Value>(&body) else {
        return body;
    };
    let token = body["id_token"].as_str().unwrap_or_default();
    let Some((signed, signature)) = token.rsplit_once('.') else {
        return body.to_string().into();
    };
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    let signature = signature.get(1..).unwrap_or_default();
    body["id_token"] = json!(format!("{signed}.{first}{signature}"));
    body.to_string().into()
}
