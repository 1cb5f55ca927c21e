//! A console over stub processes, on real sockets.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::{Clock, Secret};
use postern_service::http::TrustedProxies;
use postern_service::log::Log;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::App;
use crate::config::{
    Config, Members, ProcessGroup, ProcessKind, RoleRules, SignInConfig, TraceLink,
};
use crate::prometheus_text::Scrape;
use crate::status::ProcessStatus;

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const LINK_SECRET: &str = "fedcba9876543210fedcba9876543210";
pub(crate) const HOSTILE: &str =
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{202e}";

/// What the stub processes answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Hostile text in every member.
    Hostile,
    /// 404 to every route under `/admin/` but the verification of tokens.
    Older,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) operator: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) forwarded_for: Option<String>,
    pub(crate) body: Value,
}

/// Returns the state of one gateway with these metrics.
pub(crate) fn gateway(metrics: &str) -> Vec<ProcessStatus> {
    vec![process(ProcessKind::Gateway, metrics)]
}

/// Returns the state of a process with these metrics.
pub(crate) fn process(kind: ProcessKind, metrics: &str) -> ProcessStatus {
    ProcessStatus {
        kind,
        name: format!("{}-0", kind.as_str()),
        error: None,
        info: Value::Null,
        readiness: Value::Null,
        scrape: Scrape::parse(metrics),
        cpu: None,
        answered_at: None,
    }
}

pub(crate) struct Console {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
    pub(crate) received: Arc<Mutex<Vec<Received>>>,
    pub(crate) clock: Clock,
    pub(crate) once: Secret,
    pub(crate) stop: CancellationToken,
}

impl Console {
    pub(crate) async fn start(answers: Answers) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let stub = stub(answers, Arc::clone(&received)).await;
        Self::before(&stub, vec![stub.clone()], received, None).await
    }

    /// Starts a console over these gateways. `stub` is every other process.
    pub(crate) async fn before(
        stub: &Url,
        gateways: Vec<Url>,
        received: Arc<Mutex<Vec<Received>>>,
        prometheus: Option<&str>,
    ) -> Self {
        let group = |kind| ProcessGroup {
            kind,
            urls: match kind {
                ProcessKind::Gateway => gateways.clone(),
                ProcessKind::Auth | ProcessKind::Notify => vec![stub.clone()],
            },
            token: Secret::from(SECRET),
        };
        let members = |group: &str, service: &str| Members {
            groups: vec![group.to_owned()],
            services: vec![service.to_owned()],
        };
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            hosts: Vec::new(),
            trusted_proxies: TrustedProxies::default(),
            link_secret: Some(Secret::from(LINK_SECRET)),
            log: log(),
            sign_in: SignInConfig {
                auth: stub.clone(),
                link_file: None,
            },
            roles: RoleRules {
                viewer: members("support", "monitoring"),
                operator: members("admin", "deploy"),
            },
            trace_link: TraceLink::parse("https://traces.example/{trace_id}?x=<b>"),
            prometheus: prometheus.map(Secret::from),
            processes: ProcessKind::ALL.map(group).to_vec(),
        };
        let clock = Clock::manual(Timestamp(1_800_000_000_000));
        let app = App::build(config, clock.clone()).expect("built");
        let once = app.create_link().expect("randomness");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        tokio::spawn(app.run(listener, stop.clone()));
        Self {
            base,
            client: reqwest::Client::new(),
            received,
            clock,
            once,
            stop,
        }
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> (StatusCode, String) {
        let request = self.client.get(format!("{}{path}", self.base));
        let request = match token {
            "" => request,
            token => request.bearer_auth(token),
        };
        let response = request.send().await.expect("an answer");
        (response.status(), response.text().await.expect("a body"))
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.client.post(format!("{}{path}", self.base)).json(body);
        let response = request.bearer_auth(token).send().await.expect("an answer");
        (response.status(), response.json().await.expect("JSON"))
    }

    /// Sends a request as it is written. Returns everything until the end of the connection.
    pub(crate) async fn send(&self, request: &str) -> String {
        let address = self.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Waits for the first sample of the processes.
    pub(crate) async fn sampled(self) -> Self {
        while self
            .get("/fragments/overview", "viewer")
            .await
            .1
            .contains("first sample")
        {}
        self
    }

    pub(crate) fn changes(&self) -> Vec<Received> {
        let is_change = |call: &&Received| call.operator.is_some();
        self.received
            .lock()
            .iter()
            .filter(is_change)
            .cloned()
            .collect()
    }

    /// Returns the number of calls with a text in the header `Authorization` or in the body.
    pub(crate) fn calls_with(&self, text: &str) -> usize {
        let has_text = |call: &&Received| {
            let authorization = call.authorization.as_deref().unwrap_or_default();
            authorization.contains(text) || call.body.to_string().contains(text)
        };
        self.received.lock().iter().filter(has_text).count()
    }

    pub(crate) fn verifications(&self) -> usize {
        let calls = self.received.lock();
        calls
            .iter()
            .filter(|call| call.uri == "/admin/principal")
            .count()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn log() -> Log {
    postern_core::decode::defaults(Log::read)
}

/// Starts one stub for all three processes.
pub(crate) async fn stub(answers: Answers, received: Arc<Mutex<Vec<Received>>>) -> Url {
    let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
        let received = Arc::clone(&received);
        async move {
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let call = Received {
                method,
                uri: uri.to_string(),
                operator: text("x-postern-operator").map(str::to_owned),
                authorization: text("authorization").map(str::to_owned),
                forwarded_for: text("x-forwarded-for").map(str::to_owned),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            received.lock().push(call.clone());
            let is_admin = uri.path().starts_with("/admin/");
            let secret = format!("Bearer {SECRET}");
            if is_admin && text("authorization") != Some(secret.as_str()) {
                return problem(401, "authentication_required");
            }
            if uri.path() == "/admin/requests" && answers == Answers::Hostile {
                return live_tail(uri.query().unwrap_or_default());
            }
            answer(answers, uri.path(), &call.body)
        }
    };
    serve(Router::new().fallback(handler)).await
}

/// Serves a router on a free port.
pub(crate) async fn serve(router: Router) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    Url::parse(&format!("http://{address}")).expect("a URL")
}

pub(crate) fn problem(status: u16, code: &str) -> Response {
    let status = StatusCode::from_u16(status).expect("a status");
    (status, Json(json!({ "code": code, "title": HOSTILE }))).into_response()
}

/// Returns a stream with one request that stays open, or the refusal of a query.
fn live_tail(query: &str) -> Response {
    if query.contains("status=9xx") {
        let error = json!({ "pointer": "?status", "detail": "must be a status" });
        let body = json!({ "code": "invalid_request", "title": "The request", "errors": [error] });
        return (StatusCode::BAD_REQUEST, Json(body)).into_response();
    }
    let event = json!({ "path": HOSTILE, "status": 200 });
    let parts = [
        ": following\n\nevent: request\nda".to_owned(),
        format!("ta: {event}\n\nevent: dropped\ndata: {{\"count\":3}}\n\n"),
    ];
    let parts = stream::iter(parts.map(Ok::<_, std::io::Error>));
    let body = Body::from_stream(parts.chain(stream::pending()));
    ([("content-type", "text/event-stream")], body).into_response()
}

pub(crate) fn principal(body: &Value) -> Response {
    let user = |group: &str| {
        json!({
            "kind": "user", "subject": "s-1", "username": HOSTILE, "groups": [group], "actorGroups": [group],
        })
    };
    let foreign = |actor_groups: Value| {
        json!({
            "kind": "user", "subject": "s-1", "groups": ["admin"], "actorGroups": actor_groups,
        })
    };
    let answer = match body["authorization"].as_str() {
        Some("Bearer viewer") => user("support"),
        Some("Bearer operator") => user("admin"),
        Some("Bearer stranger") => user("customers"),
        // A user of another issuer, and one whose pool the gateway does not tell.
        Some("Bearer foreigner") => foreign(json!([])),
        Some("Bearer unknown-pool") => foreign(Value::Null),
        // A group of a service has no meaning; a user has no service name.
        Some("Bearer service") => {
            json!({ "kind": "service", "subject": "monitoring", "actorGroups": ["admin"] })
        }
        Some("Bearer impostor") => {
            json!({ "kind": "user", "subject": "deploy", "username": "deploy", "actorGroups": [] })
        }
        Some("Bearer guessed") => return problem(401, "token_signature_invalid"),
        Some(_) | None => return problem(401, "token_expired"),
    };
    Json(answer).into_response()
}

pub(crate) fn answer(answers: Answers, path: &str, body: &Value) -> Response {
    let row = json!({
        "at": HOSTILE, "time": HOSTILE, "createdAt": HOSTILE, "source": HOSTILE, "event": "FAILED", "outcome": HOSTILE,
        "reason": HOSTILE, "notificationId": HOSTILE, "requestId": HOSTILE, "subject": HOSTILE, "name": HOSTILE, "email": HOSTILE,
        "state": HOSTILE, "status": HOSTILE, "detail": { "reply": [HOSTILE] }, "path": HOSTILE, "hosts": [HOSTILE],
        "address": HOSTILE, "id": HOSTILE, "network": HOSTILE, "kid": HOSTILE, "number": HOSTILE, "hash": HOSTILE,
        "paused": { "operator": HOSTILE, "at": HOSTILE, "reason": HOSTILE },
        "endpoints": [{ "address": HOSTILE, "ejected": { "cause": HOSTILE } }], "keys": [{ "kid": HOSTILE }],
        "template": HOSTILE, "recipient": HOSTILE, "issuer": HOSTILE, "lastError": HOSTILE, HOSTILE: HOSTILE,
        "sendAt": HOSTILE, "expiresAt": HOSTILE,
    });
    match path {
        "/admin/principal" => principal(body),
        "/auth/login" if body["password"] == "right" => Json(json!({ "accessToken": "operator" })).into_response(),
        "/auth/login" => problem(401, "invalid_credentials"),
        "/metrics" => "postern_build_info{version=\"<b>1\"} 1\npostern_notify_provider_up{channel=\"email\",provider=\"<b>x\"} 0\n\
                       postern_requests_total{route=\"<b>r\",class=\"5xx\"} 3\n".into_response(),
        "/readyz" => Json(json!({ "ready": false, "parts": { "<b>part": HOSTILE }, "degraded": [HOSTILE] })).into_response(),
        "/admin/explain" if answers == Answers::Hostile => {
            let route = format!("orders: {HOSTILE}");
            Json(json!({ "route": route, "why": [HOSTILE], "decision": "403 insufficient_scope: The" })).into_response()
        }
        _ if answers == Answers::Older => problem(404, "not_found"),
        "/admin/routes" => Json(json!([row])).into_response(),
        _ => {
            let rows = json!([row]);
            let mut members = row.as_object().expect("an object").clone();
            for name in ["entries", "subjects", "notifications", "deadLetters", "events", "attempts", "providers", "templates",
                "issuers", "history", "errors", "tests", "warnings", "accounts", "networks", "upstreams",
                "users", "groups", "allGroups", "signIns", "queues"] {
                members.insert(name.to_owned(), rows.clone());
            }
            members.insert("text".to_owned(), json!(HOSTILE));
            members.insert("html".to_owned(), json!(HOSTILE));
            members.insert("nextCursor".to_owned(), json!(HOSTILE));
            Json(Value::Object(members)).into_response()
        }
    }
}
