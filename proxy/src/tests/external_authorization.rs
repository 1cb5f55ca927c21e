//! External authorization services.

use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tokio::sync::Semaphore;

use super::load_balancers::Program;
use super::*;

/// A service that answers with the status that the target contains, such as `/open?403`.
#[derive(Clone)]
struct CheckService {
    address: SocketAddr,
    checks: Arc<Mutex<Vec<HeaderMap>>>,
    /// Whether answers wait for `permits`.
    is_holding: Arc<AtomicBool>,
    permits: Arc<Semaphore>,
}

impl CheckService {
    async fn start() -> Self {
        let listener = bind().await;
        let service = Self {
            address: listener.local_addr().expect("bound"),
            checks: Arc::default(),
            is_holding: Arc::default(),
            permits: Arc::new(Semaphore::new(0)),
        };
        let answering = service.clone();
        let router = Router::new().fallback(move |headers: HeaderMap| {
            let answering = answering.clone();
            async move { answering.answer(headers).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        service
    }

    async fn answer(&self, headers: HeaderMap) -> Response {
        let target = headers["x-forwarded-uri"].to_str().expect("text");
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let query = query.to_owned();
        self.checks.lock().push(headers);
        if self.is_holding.load(Ordering::Relaxed) {
            self.permits.acquire().await.expect("open").forget();
        }
        let status = query.split('&').next().and_then(|text| text.parse().ok());
        let huge = "x".repeat(9 << 10);
        let tenant: &str = if query.contains("huge") {
            &huge
        } else {
            "acme"
        };
        let others = [("x-postern-subject", "mallory"), ("location", "/elsewhere")];
        let fields = [("x-tenant", tenant), others[0], others[1]].map(|(k, v)| (k, v.to_owned()));
        let status = StatusCode::from_u16(status.unwrap_or(200)).expect("a status");
        (status, fields, "the body").into_response()
    }

    fn checks(&self) -> usize {
        self.checks.lock().len()
    }

    /// Waits until this number of checks has arrived.
    async fn wait_for_checks(&self, count: usize) {
        wait_until(async || self.checks() >= count).await;
    }
}

/// Starts a gateway whose routes `/open` (public) and `/users` ask a service.
async fn gateway(service: SocketAddr, authorize: &str) -> TestGateway {
    let authorize = format!(
        "authorize = {{ url = \"http://{service}/check\", forward_headers = [\"x-tenant\"]{authorize} }}"
    );
    let public = format!("policy = \"public\"\n{authorize}");
    let any = format!("policy = {{ users = \"any\", services = \"any\" }}\n{authorize}");
    let routes = route("open", "/open", &public) + &route("users", "/users", &any);
    TestGateway::routed(OriginBehavior::Answer, "", "", &routes).await
}

#[tokio::test]
async fn service_decides_after_the_policy() {
    let service = CheckService::start().await;
    let gateway = gateway(service.address, "").await;
    let token = gateway.bearer();
    for (target, code) in [
        ("/users?401", "authorization_required"),
        ("/users?403", "authorization_denied"),
    ] {
        assert_eq!(gateway.get(target, &token).await.code(), code, "{target}");
    }
    let forged = "X-Tenant: mallory\r\nx_tenant: mallory\r\nX.Tenant: mallory\r\n";
    let headers = format!("{token}{forged}Cookie: a=b\r\n");
    assert_eq!(gateway.get("/users?200&a=b", &headers).await.status, 200);
    let seen = gateway.origin.last();
    assert_fields(&seen, &["x-tenant: acme", "X-Postern-Subject: ada"]);
    for text in ["mallory", "/elsewhere"] {
        assert!(!seen.contains(text), "{seen}");
    }
    let check = service.checks.lock().pop().expect("a check");
    for (name, value) in [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/users?200&a=b"),
        ("x-forwarded-host", "gate"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-postern-kind", "user"),
        ("x-postern-subject", "ada"),
        ("x-postern-scopes", "read write"),
    ] {
        assert_eq!(check[name], value, "{name}");
    }
    assert!(check.contains_key("x-request-id") && check.contains_key("traceparent"));
    for name in ["authorization", "cookie", "x-tenant", "x_tenant"] {
        assert!(!check.contains_key(name), "{name}");
    }
    let before = service.checks();
    let response = gateway.get("/users?200", "").await;
    assert_eq!(response.code(), "authentication_required");
    // No check of what the policy refuses.
    assert_eq!(service.checks(), before);
    assert_eq!(gateway.origin.seen().len(), 1);
    for (result, count) in [("allowed", 1), ("denied", 2)] {
        let line = format!("result=\"{result}\",route=\"users\"}} {count}");
        gateway.assert_metric(&line).await;
    }
    let mut events = gateway.finish().await;
    events.retain(|it| it["code"] == "authorization_denied");
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn public_route_is_decided_without_a_caller() {
    let service = CheckService::start().await;
    let gateway = gateway(service.address, "").await;
    let forged = "X-Postern-Subject: mallory\r\n";
    assert_eq!(gateway.get("/open?204", forged).await.status, 200);
    assert_eq!(gateway.get("/open?403", forged).await.status, 403);
    for check in service.checks.lock().iter() {
        assert!(!check.contains_key("x-postern-subject"), "{check:?}");
    }
}

#[tokio::test]
async fn anything_else_than_a_decision_is_unavailable() {
    let service = CheckService::start().await;
    let gateway = gateway(service.address, ", timeout = \"300ms\"").await;
    for target in ["/open?302", "/open?404", "/open?500", "/open?200&huge"] {
        let response = gateway.get(target, "").await;
        let found = response.problem();
        assert_eq!(found, "503 authorization_unavailable", "{target}");
        assert!(response.header("retry-after").is_some());
    }
    // Resets the failures.
    assert_eq!(gateway.get("/open?200", "").await.status, 200);
    service.is_holding.store(true, Ordering::Relaxed);
    let response = gateway.get("/open?200", "").await;
    // No answer in time.
    assert_eq!(response.code(), "authorization_unavailable");
    let unreachable = self::gateway(unused_address().await, "").await;
    let response = unreachable.get("/open", "").await;
    // No connection.
    assert_eq!(response.code(), "authorization_unavailable");
    unreachable.origin.assert_unused();
    assert_eq!(gateway.origin.seen().len(), 1);
}

#[tokio::test]
async fn no_call_is_made_after_five_failures() {
    let service = CheckService::start().await;
    let gateway = gateway(service.address, "").await;
    for _ in 0..6 {
        assert_eq!(gateway.get("/open?500", "").await.status, 503);
    }
    assert_eq!(service.checks(), 6, "a response to one request");
    service.checks.lock().clear();
    for _ in 0..5 {
        assert_eq!(gateway.get("/open?502", "").await.status, 503);
    }
    assert_eq!(service.checks(), 5);
    // The circuit is open.
    assert_eq!(gateway.get("/open?200", "").await.status, 503);
    assert_eq!(service.checks(), 5, "no call");
    // Half-open after a second: one call decides.
    wait_until(async || gateway.get("/open?200", "").await.status == 200).await;
    assert_eq!(service.checks(), 6);
}

/// Asks for a route from 127.0.0.`last`.
async fn ask_from(gateway: &TestGateway, last: u8, target: &str) -> RawClient {
    let request = format!("GET {target} HTTP/1.1\r\nHost: gate\r\n\r\n");
    begin_from(gateway, last, &request).await
}

#[tokio::test]
async fn calls_of_one_client_leave_places_for_others() {
    let service = CheckService::start().await;
    service.is_holding.store(true, Ordering::Relaxed);
    let gateway = gateway(service.address, ", timeout = \"5s\", in_flight = 64").await;
    let mut greedy = Vec::new();
    for number in 0..64 {
        greedy.push(ask_from(&gateway, 2, &format!("/open?200&{number}")).await);
    }
    service.wait_for_checks(32).await;
    let mut users = Vec::new();
    for last in 10..30 {
        users.push(ask_from(&gateway, last, "/open?200").await);
    }
    service.wait_for_checks(32 + 20).await;
    service.permits.add_permits(64);
    for mut user in users {
        assert_eq!(user.answer().await.status, 200);
    }
    let mut refused = 0;
    for mut client in greedy {
        refused += usize::from(client.answer().await.status == 503);
    }
    assert_eq!(refused, 32);
}

#[tokio::test]
async fn timeouts_of_one_client_or_beside_answers_do_not_open_the_circuit() {
    for (clients, has_answer, is_open) in [(1, false, false), (5, false, true), (5, true, false)] {
        let service = CheckService::start().await;
        service.is_holding.store(true, Ordering::Relaxed);
        let gateway = gateway(service.address, ", timeout = \"300ms\"").await;
        let mut slow = Vec::new();
        for number in 0..10 {
            let client = 2 + number % clients;
            slow.push(ask_from(&gateway, client, &format!("/open?200&{number}")).await);
        }
        service.wait_for_checks(10).await;
        service.is_holding.store(!has_answer, Ordering::Relaxed);
        if has_answer {
            assert_eq!(gateway.get("/open?200", "").await.status, 200);
        }
        for mut client in slow {
            assert_eq!(client.answer().await.status, 503);
        }
        service.is_holding.store(false, Ordering::Relaxed);
        let expected = if is_open { 503 } else { 200 };
        for last in 10..30 {
            let mut user = ask_from(&gateway, last, &format!("/open?200&{last}")).await;
            let status = user.answer().await.status;
            assert_eq!(status, expected, "{clients} {has_answer} {last}");
        }
    }
}

#[tokio::test]
async fn statuses_decide_as_with_auth_request_of_nginx() {
    let service = CheckService::start().await;
    let gateway = gateway(service.address, "").await;
    let nginx = Program::nginx(&format!(
        "listen 127.0.0.1:{{port}};\n\
         location / {{ auth_request /check; proxy_pass http://{}; }}\n\
         location = /check {{ internal; proxy_pass http://{}; proxy_pass_request_body off;\n\
         proxy_set_header Content-Length \"\"; proxy_set_header X-Forwarded-Uri $request_uri; }}",
        gateway.origin.address, service.address
    ))
    .await;
    for status in [200, 204, 299, 301, 302, 400, 401, 403, 404, 429, 500, 503] {
        let target = format!("/open?{status}");
        let theirs = fetch(nginx.address, &target).await.status;
        let ours = gateway.get(&target, "").await.status;
        // Where nginx answers 500, the gateway says that it is temporary.
        let expected = if theirs == 500 { 503 } else { theirs };
        assert_eq!(ours, expected, "{status}");
        if ours == 503 {
            // Keeps the circuit closed.
            assert_eq!(gateway.get("/open?200", "").await.status, 200);
        }
    }
}
