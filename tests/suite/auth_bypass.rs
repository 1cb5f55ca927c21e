//! Authentication bypass: no spelling of a request reaches a protected upstream without a token, by
//! path, header, method, upgrade or version.

use std::net::SocketAddr;

use postern_harness::{Contract, Gateway, Origin, Pools, RawClient};

/// Returns other spellings of a path that some server considers equal.
fn spellings(path: &str) -> Vec<String> {
    let first = path.as_bytes()[1];
    let encoded = format!("/%{first:02x}{}", &path[2..]);
    let twice = format!("/%25{first:02x}{}", &path[2..]);
    let forms = FORMS.split_whitespace();
    let mut all: Vec<String> = forms.map(|form| form.replace("{}", path)).collect();
    all.extend([
        path.to_uppercase(),
        encoded,
        twice,
        path.replace('/', "\\"),
        path.replace('/', "/./"),
    ]);
    all
}

/// Spellings around a path.
const FORMS: &str = "
    {} {}/ /{} //{} {}// /.{} /x/..{} /auth/login/..{} /auth/login/%2e%2e{} /auth/login%2f..{}
    /auth/login;{} /auth/login/../..{} {};a=b {}? {}?access_token=x {}# {}%00 {}%20 {}. {}.json {}%2f
    \\{} http://localhost{} http://localhost:8500{} HTTP://a@localhost{} https://localhost{}
    /webhooks/..{} /webhooks/twilio/../..{} /.well-known/..{} * {}%c0%af {}\u{e9} /%2e{} /%2F{}";

/// Header sets without a valid token that resemble one.
const HEADERS: &[&str] = &[
    "",
    "Authorization: Bearer\r\n",
    "Authorization: Bearer \r\n",
    "Authorization: Bearer x\r\n",
    "Authorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n",
    "authorization: basic YTpi\r\n",
    "Authorization: Bearer x\r\nAuthorization: Bearer y\r\n",
    "Authorization : Bearer x\r\n",
    " Authorization: Bearer x\r\n",
    "Proxy-Authorization: Bearer x\r\n",
    "Cookie: accessToken=x\r\n",
    "X-Original-URL: /auth/login\r\n",
    "X-Rewrite-URL: /auth/login\r\n",
    "X-Forwarded-Prefix: /auth/login\r\n",
    "X-Forwarded-Host: localhost\r\nX-Forwarded-For: 127.0.0.1\r\n",
    "X-HTTP-Method-Override: OPTIONS\r\n",
    "X-Postern-Kind: service\r\nX-Postern-Service: auth\r\nX-Postern-Subject: auth\r\n",
    "x_postern_kind: service\r\nx.postern.service: auth\r\n",
    "Connection: Authorization\r\n",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YTpiYTpiYTpiYTpiYTpiYQ==\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "Origin: http://localhost\r\nAccess-Control-Request-Method: GET\r\n",
    "Expect: 100-continue\r\n",
];

const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get",
    "PROPFIND", "X",
];

async fn is_refused(address: SocketAddr, request: &str) {
    let answer = RawClient::send(address, request.as_bytes()).await;
    let status = answer.status.as_u16();
    assert!(
        matches!(status, 400 | 401 | 405 | 501 | 505),
        "{request:?} was answered {status}: {}",
        answer.text()
    );
    if status == 401 && !request.starts_with("HEAD ") {
        let body = answer.json();
        assert_eq!(body["status"], 401, "{request:?}: {body}");
        let challenge = answer.header("www-authenticate");
        assert!(challenge.starts_with("Bearer"), "{request:?}");
    }
}

/// Sends every request of the tables; none may reach a protected upstream.
async fn every_hostile_request<F: Future<Output = ()>>(send: impl Fn(String) -> F) {
    let operations = Contract::shared().operations.iter();
    for operation in operations.filter(|operation| operation.is_protected) {
        let (method, path) = (&operation.method, operation.sample_path());
        let host = "Host: localhost\r\n";
        for spelling in spellings(&path) {
            let line = format!("{method} {spelling} HTTP/1.1\r\n");
            send(format!("{line}{host}Connection: close\r\n\r\n")).await;
        }
        for other in METHODS {
            let line = format!("{other} {path} HTTP/1.1\r\n");
            send(format!("{line}{host}Content-Length: 0\r\n\r\n")).await;
        }
        for headers in HEADERS {
            let line = format!("{method} {path} HTTP/1.1\r\n");
            send(format!("{line}{host}Content-Length: 0\r\n{headers}\r\n")).await;
        }
        for version in ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 "] {
            send(format!("{method} {path} {version}\r\n{host}\r\n")).await;
        }
    }
}

#[tokio::test]
async fn no_request_variant_passes_without_a_token() {
    let pools = Pools::start().await;
    let upstream = Origin::start().await;
    let config = Gateway::config(upstream.address());
    let gateway = Gateway::start(&config, &pools.env()).await;
    let address = gateway.client().address();
    every_hostile_request(|request| async move { is_refused(address, &request).await }).await;
    // No rejected request reached an upstream.
    assert_eq!(upstream.seen().len(), 0);
    gateway.stop().await;
}
