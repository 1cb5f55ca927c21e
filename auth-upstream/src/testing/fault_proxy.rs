//! An HTTP proxy before the development services, which records calls and injects faults.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// A proxy before the identity pool, the social provider and the actor service, which accepts
/// notifications itself. A call is named by
/// the pool's operation or by its path; a name that begins with `/` stands for all paths that begin
/// with it.
#[derive(Clone)]
pub(crate) struct FaultProxy(Arc<ProxyState>);

struct ProxyState {
    targets: Targets,
    calls: Mutex<Vec<(String, Value)>>,
    faults: Mutex<Vec<Injection>>,
}

pub(super) struct Targets {
    pub(super) pool: String,
    pub(super) social: String,
    pub(super) actors: String,
}

struct Injection {
    call: String,
    /// The number of calls that the fault still affects.
    times: usize,
    fault: Fault,
}

#[derive(Clone)]
pub(crate) enum Fault {
    /// The call does not reach the service: status, type and content of the answer instead.
    Answer(u16, &'static str, String),
    /// The call reaches the service; its answer is changed.
    Change(Arc<dyn Fn(&mut Value) + Send + Sync>),
    /// The call does not reach the service, and is not answered.
    Silence,
    /// The call waits, before it reaches the service, or the next fault, or afterwards.
    Pause(PausePoint, Arc<PauseSignals>),
}

/// The point at which a call is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PausePoint {
    /// Before the call has an effect.
    Before,
    /// After the call has had its effect, before its answer.
    After,
}

#[derive(Debug, Default)]
pub(crate) struct PauseSignals {
    reached: Notify,
    released: Notify,
}

/// A call that is paused, or will be.
pub(crate) struct PausedCall(Arc<PauseSignals>);

// === impl Fault ===

impl Fault {
    pub(crate) fn answer(status: u16, body: &Value) -> Self {
        Self::Answer(status, "application/json", body.to_string())
    }

    pub(crate) fn status(status: u16) -> Self {
        Self::answer(status, &json!({}))
    }

    pub(crate) fn exception(name: &str, message: &str) -> Self {
        Self::answer(400, &json!({ "__type": name, "message": message }))
    }

    pub(crate) fn internal_error() -> Self {
        Self::answer(500, &json!({ "__type": "InternalErrorException" }))
    }

    pub(crate) fn change(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Change(Arc::new(change))
    }
}

// === impl PauseSignals ===

impl PauseSignals {
    async fn pass(&self) {
        self.reached.notify_one();
        self.released.notified().await;
    }
}

// === impl PausedCall ===

impl PausedCall {
    pub(crate) async fn reached(&self) {
        self.0.reached.notified().await;
    }

    pub(crate) fn release(&self) {
        self.0.released.notify_one();
    }
}

// === impl FaultProxy ===

impl FaultProxy {
    pub(super) fn start(listener: TcpListener, targets: Targets) -> Self {
        let proxy = Self(Arc::new(ProxyState {
            targets,
            calls: Mutex::default(),
            faults: Mutex::default(),
        }));
        let router = Router::new().fallback(handle).with_state(proxy.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        proxy
    }

    /// Injects a fault into the next `times` calls.
    pub(crate) fn inject(&self, call: &str, times: usize, fault: Fault) {
        let call = call.to_owned();
        self.0.faults.lock().push(Injection { call, times, fault });
    }

    pub(crate) fn clear(&self, call: &str) {
        self.0.faults.lock().retain(|known| known.call != call);
    }

    pub(crate) fn pause(&self, call: &str, point: PausePoint) -> PausedCall {
        let signals = Arc::new(PauseSignals::default());
        self.inject(call, 1, Fault::Pause(point, Arc::clone(&signals)));
        PausedCall(signals)
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.bodies(call).len()
    }

    /// Returns the bodies of the calls that have arrived; as text for one that is not JSON.
    pub(crate) fn bodies(&self, call: &str) -> Vec<Value> {
        let calls = self.0.calls.lock();
        let matching = calls.iter().filter(|(name, _)| is_named(name, call));
        matching.map(|(_, body)| body.clone()).collect()
    }

    fn next_fault(&self, name: &str) -> Option<Fault> {
        let mut faults = self.0.faults.lock();
        let index = faults
            .iter()
            .position(|known| is_named(name, &known.call))?;
        let injection = &mut faults[index];
        injection.times -= 1;
        if injection.times == 0 {
            return Some(faults.remove(index).fault);
        }
        Some(injection.fault.clone())
    }

    async fn forward(&self, head: Parts, body: Vec<u8>) -> (u16, HeaderMap, Vec<u8>) {
        if head.uri.path() == "/notifications" {
            return (201, HeaderMap::new(), b"{}".to_vec());
        }
        let targets = &self.0.targets;
        let base = match head.uri.path() {
            "/" => &targets.pool,
            path if path.ends_with("/jwks.json") => &targets.pool,
            path if path.starts_with("/actors/") => &targets.actors,
            _ => &targets.social,
        };
        let request = http().request(head.method, format!("{base}{}", head.uri));
        let request = request.headers(end_to_end(head.headers)).body(body);
        let answer = request.send().await.expect("the service answers");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.bytes().await.expect("the service answers").to_vec();
        (status, end_to_end(headers), body)
    }
}

fn is_named(name: &str, call: &str) -> bool {
    name == call || (call.starts_with('/') && name.starts_with(call))
}

fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    headers
}

async fn handle(State(proxy): State<FaultProxy>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a whole request");
    let body = body.to_vec();
    let target = head.headers.get("x-amz-target");
    let operation = target.and_then(|target| target.to_str().ok()?.rsplit('.').next());
    let name = operation.unwrap_or(head.uri.path()).to_owned();
    let text = || String::from_utf8_lossy(&body).into_owned().into();
    let json = serde_json::from_slice(&body).unwrap_or_else(|_| text());
    proxy.0.calls.lock().push((name.clone(), json));
    let mut fault = proxy.next_fault(&name);
    if let Some(Fault::Pause(PausePoint::Before, signals)) = &fault {
        signals.pass().await;
        fault = proxy.next_fault(&name);
    }
    match fault {
        None => respond(proxy.forward(head, body).await),
        Some(Fault::Answer(status, kind, text)) => {
            let kind = (CONTENT_TYPE, HeaderValue::from_static(kind));
            respond((status, HeaderMap::from_iter([kind]), text.into_bytes()))
        }
        Some(Fault::Change(change)) => {
            let (status, headers, body) = proxy.forward(head, body).await;
            let mut json = serde_json::from_slice(&body).expect("JSON");
            change(&mut json);
            respond((status, headers, json.to_string().into_bytes()))
        }
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Pause(_, signals)) => {
            let answer = proxy.forward(head, body).await;
            signals.pass().await;
            respond(answer)
        }
    }
}

fn respond((status, headers, body): (u16, HeaderMap, Vec<u8>)) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    *response.headers_mut() = headers;
    response
}

/// Returns the HTTP client of all tests. It keeps no connections, because each test has a runtime of
/// its own.
pub(crate) fn http() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let client = reqwest::Client::builder().no_proxy();
        let client = client.redirect(Policy::none()).pool_max_idle_per_host(0);
        let client = client.timeout(Duration::from_secs(60));
        client.build().expect("a client")
    })
}
