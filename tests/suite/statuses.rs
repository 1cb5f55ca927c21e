//! Error responses of the gateway itself, on every operation of the contract: each documented
//! status is provoked, and the response is checked against the document.

use std::net::SocketAddr;

use http::Method;
use postern_core::config::Env;
use postern_harness::config_file::ConfigFile;
use postern_harness::contract::Operation;
use postern_harness::{Answer, BrokenOrigin, Contract, Gateway, Pools, RawClient};

/// Statuses that any route may return.
const OF_THE_GATEWAY: [u16; 11] = [400, 401, 413, 414, 429, 431, 500, 502, 503, 504, 505];

/// An upstream's own error response, which is passed on unchanged.
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/problem+json\r\nCache-Control: \
    no-store\r\nContent-Length: 129\r\n\r\n{\"type\":\"https://postern.dev/problems/internal-error\",\"title\":\"It failed\",\
    \"status\":500,\"code\":\"internal_error\",\"requestId\":\"r-1\"}";

/// Sends requests to every operation, with a token that it accepts.
struct Caller {
    contract: &'static Contract,
    user: String,
    admin: String,
    service: String,
    env: Env,
}

impl Caller {
    async fn new(pools: &Pools) -> Self {
        Self {
            contract: Contract::fresh(),
            user: pools.user(&[]).await.1,
            admin: pools.user(&["admin"]).await.1,
            service: pools.service_token("auth").await,
            env: pools.env(),
        }
    }

    fn authorization(&self, operation: &Operation) -> String {
        let token = match operation.id.as_str() {
            _ if !operation.is_protected => return String::new(),
            "registerActor" | "getActor" | "listCandidates" | "createCandidate"
            | "getCandidate" | "createJobSpec" => &self.service,
            "putFeature" => &self.admin,
            _ => &self.user,
        };
        format!("Authorization: Bearer {token}\r\n")
    }

    /// Sends a request to every operation that documents the status, and asserts it. `change`
    /// returns query, additional headers and body for the headers of a valid request.
    async fn provoke(
        &self,
        gateway: SocketAddr,
        status: u16,
        code: &str,
        change: impl Fn(String) -> (String, String, &'static str),
    ) {
        for operation in self.contract.operations() {
            if !operation.responses.contains_key(&status)
                || (status == 401 && !operation.is_protected)
            {
                continue;
            }
            let (query, headers, body) = change(self.authorization(operation));
            let answer = send(gateway, operation, &query, &headers, body).await;
            let (id, text) = (&operation.id, answer.text());
            assert_eq!(answer.status.as_u16(), status, "{id}: {text}");
            assert_eq!(answer.json()["code"], code, "{id}: {text}");
            // No error is named where no token was sent.
            let challenge = answer.headers.get("www-authenticate");
            assert!(
                status != 401 || challenge.is_some_and(|it| it == "Bearer"),
                "{id}"
            );
            self.contract
                .assert_conforms(&operation.method, &path(operation), &answer);
        }
    }

    /// Sends the same request to every operation through a separate gateway.
    async fn provoke_behind(&self, file: ConfigFile, status: u16, code: &str) {
        let gateway = Gateway::start(&file, &self.env).await;
        let plain = |headers| (String::new(), headers, "{}");
        self.provoke(gateway.client().address(), status, code, plain)
            .await;
        gateway.stop().await;
    }
}

fn path(operation: &Operation) -> String {
    operation.path.replace(['{', '}'], "")
}

async fn send(
    gateway: SocketAddr,
    operation: &Operation,
    query: &str,
    headers: &str,
    body: &str,
) -> Answer {
    let is_get = operation.method == Method::GET;
    let body = if is_get { "" } else { body };
    let length = match is_get || headers.contains("Content-Length") {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let line = format!(
        "{} {}{query} HTTP/1.1\r\nHost: localhost\r\n",
        operation.method,
        path(operation)
    );
    let request = format!("{line}Content-Type: application/json\r\n{length}{headers}\r\n{body}");
    RawClient::send(gateway, request.as_bytes()).await
}

#[tokio::test]
async fn every_operation_documents_the_gateway_errors() {
    let pools = Pools::start().await;
    let caller = Caller::new(&pools).await;
    refusals(&caller).await;
    failures(&caller).await;
    let seen = caller.contract.seen();
    let mut unseen = Vec::new();
    for operation in caller.contract.operations() {
        for status in operation.responses.keys() {
            // The 401 of public operations, and errors of the body, are the upstream's.
            let is_own =
                OF_THE_GATEWAY.contains(status) && (*status != 401 || operation.is_protected);
            let answer = (operation.id.clone(), *status);
            if is_own && !seen.contains(&answer) {
                unseen.push(answer);
            }
        }
    }
    assert!(unseen.is_empty(), "not provoked: {unseen:?}");
}

/// Provokes errors before an upstream is contacted.
async fn refusals(caller: &Caller) {
    let away = BrokenOrigin::RefusesConnections.start().await;
    let gateway = Gateway::start(&Gateway::config(away), &caller.env).await;
    let address = gateway.client().address();
    let long = format!("?a={}", "a".repeat(10_000));
    let large = format!("X-Large: {}\r\n", "a".repeat(70_000));
    // The rest of a line with another version becomes a header field.
    let cases = [
        (400, "invalid_header", "", "Connection: authorization\r\n"),
        (413, "body_too_large", "", "Content-Length: 99999999999\r\n"),
        (414, "target_too_long", &*long, ""),
        (
            505,
            "http_version_not_supported",
            " HTTP/1.2\r\nX-Rest:",
            "",
        ),
        (431, "head_too_large", "", &*large),
    ];
    for (status, code, query, more) in cases {
        let change = |good: String| (query.to_owned(), good + more, "");
        caller.provoke(address, status, code, change).await;
    }
    let without_token = |_| (String::new(), String::new(), "");
    let code = "authentication_required";
    caller.provoke(address, 401, code, without_token).await;
    gateway.stop().await;
    let limit = "requests = 1\nper = \"1h\"\nburst = 1\n";
    let limited = Gateway::config(away).replace_table("limits.address", limit);
    let gateway = Gateway::start(&limited, &caller.env).await;
    let first = gateway.client().get("/").send().await;
    assert_eq!(first.status, 401, "within the limit: {}", first.text());
    let address = gateway.client().address();
    let plain = |good| (String::new(), good, "{}");
    caller.provoke(address, 429, "rate_limited", plain).await;
    gateway.stop().await;
}

/// Provokes upstream errors.
async fn failures(caller: &Caller) {
    let cases = [
        (BrokenOrigin::Writes(FAILED), 500, "internal_error"),
        (
            BrokenOrigin::Writes(b"ceci n'est pas HTTP\r\n\r\n"),
            502,
            "upstream_failed",
        ),
        (
            BrokenOrigin::RefusesConnections,
            503,
            "upstream_unavailable",
        ),
    ];
    for (origin, status, code) in cases {
        let file = Gateway::config(origin.start().await);
        caller.provoke_behind(file, status, code).await;
    }
    let hangs = BrokenOrigin::NeverResponds.start().await;
    let keys = format!(
        "addresses = [\"{hangs}\"]\nconnect_timeout = \"200ms\"\nread_timeout = \"50ms\"\n"
    );
    let impatient = ["auth", "notify", "actor", "document", "identity-pool"]
        .into_iter()
        .fold(Gateway::config(hangs), |file, name| {
            file.replace_table(&format!("upstream.{name}"), &keys)
        });
    caller
        .provoke_behind(impatient, 504, "upstream_timeout")
        .await;
}
