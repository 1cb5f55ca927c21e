//! Error responses of the gateway itself, on every operation of the contract: each documented
//! status is provoked, and the response is checked against the document.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::Method;
use postern_core::config::Env;
use postern_tests::config_file::ConfigFile;
use postern_tests::contract::Operation;
use postern_tests::{Answer, Contract, FailingUpstream, Gateway, Pools, raw};

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
            assert_eq!(
                answer.status.as_u16(),
                status,
                "{}: {}",
                operation.id,
                answer.text()
            );
            assert_eq!(
                answer.json()["code"],
                code,
                "{}: {}",
                operation.id,
                answer.text()
            );
            self.contract
                .assert_conforms(&operation.method, &path(operation), &answer);
        }
    }

    /// Sends the same request to every operation through a separate gateway.
    async fn provoke_behind(&self, file: ConfigFile, status: u16, code: &str) {
        let gateway = Gateway::start(&file, &self.env).await;
        self.provoke(gateway.client().address(), status, code, |headers| {
            (String::new(), headers, "{}")
        })
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
    let length = match operation.method {
        Method::GET => String::new(),
        _ if headers.contains("Content-Length") => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    let body = if operation.method == Method::GET {
        ""
    } else {
        body
    };
    let line = format!(
        "{} {}{query} HTTP/1.1\r\nHost: localhost\r\n",
        operation.method,
        path(operation)
    );
    let request = format!("{line}Content-Type: application/json\r\n{length}{headers}\r\n{body}");
    raw::send(gateway, request.as_bytes()).await
}

#[tokio::test]
async fn every_operation_documents_the_gateway_errors() {
    let pools = Pools::start().await;
    let caller = Caller::new(&pools).await;
    refusals(&caller).await;
    failures(&caller).await;
    let seen = caller.contract.seen();
    let documented = caller.contract.operations().iter().flat_map(|operation| {
        let own = operation
            .responses
            .keys()
            .filter(|status| OF_THE_GATEWAY.contains(status));
        own.map(|status| (operation.id.clone(), *status))
    });
    // The 401 of public operations, and errors of the body, are the upstream's.
    let public: BTreeSet<_> = caller
        .contract
        .operations()
        .iter()
        .filter(|one| !one.is_protected)
        .map(|one| &one.id)
        .collect();
    let unseen: Vec<_> = documented
        .filter(|one| !(seen.contains(one) || one.1 == 401 && public.contains(&one.0)))
        .collect();
    assert!(unseen.is_empty(), "not provoked: {unseen:?}");
}

/// Provokes errors before an upstream is contacted.
async fn refusals(caller: &Caller) {
    let away = FailingUpstream::RefusesConnections.start().await;
    let gateway = Gateway::start(&Gateway::config(away), &caller.env).await;
    let address = gateway.client().address();
    let with = |more: &'static str| move |good: String| (String::new(), good + more, "");
    caller
        .provoke(
            address,
            400,
            "invalid_header",
            with("Connection: authorization\r\n"),
        )
        .await;
    caller
        .provoke(address, 401, "authentication_required", |_| {
            (String::new(), String::new(), "")
        })
        .await;
    caller
        .provoke(
            address,
            413,
            "body_too_large",
            with("Content-Length: 99999999999\r\n"),
        )
        .await;
    let long = format!("?a={}", "a".repeat(10_000));
    caller
        .provoke(address, 414, "target_too_long", |good| {
            (long.clone(), good, "")
        })
        .await;
    // The rest becomes a header field.
    let version = " HTTP/1.2\r\nX-Rest:";
    caller
        .provoke(address, 505, "http_version_not_supported", |good| {
            (version.to_owned(), good, "")
        })
        .await;
    let large = format!("X-Large: {}\r\n", "a".repeat(70_000));
    caller
        .provoke(address, 431, "head_too_large", |good| {
            (String::new(), good + &large, "")
        })
        .await;
    gateway.stop().await;
    let limit = "requests = 1\nper = \"1h\"\nburst = 1\n";
    let limited = Gateway::config(away).replace_table("limits.address", limit);
    let gateway = Gateway::start(&limited, &caller.env).await;
    let first = gateway.client().get("/").send().await;
    assert_eq!(
        first.status.as_u16(),
        401,
        "the first is within the limit: {}",
        first.text()
    );
    let address = gateway.client().address();
    caller
        .provoke(address, 429, "rate_limited", |good| {
            (String::new(), good, "{}")
        })
        .await;
    gateway.stop().await;
}

/// Provokes upstream errors.
async fn failures(caller: &Caller) {
    let failed = FailingUpstream::Responds(FAILED).start().await;
    caller
        .provoke_behind(Gateway::config(failed), 500, "internal_error")
        .await;
    let garbage = FailingUpstream::Responds(b"ceci n'est pas HTTP\r\n\r\n")
        .start()
        .await;
    caller
        .provoke_behind(Gateway::config(garbage), 502, "upstream_failed")
        .await;
    let away = FailingUpstream::RefusesConnections.start().await;
    caller
        .provoke_behind(Gateway::config(away), 503, "upstream_unavailable")
        .await;
    let hangs = FailingUpstream::NeverResponds.start().await;
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
