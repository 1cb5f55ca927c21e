//! Who is let through: no spelling of a request reaches a protected upstream without a token, and a token of one
//! kind does not pass for the other.

use std::net::SocketAddr;

use postern_tests::http_body::json;
use postern_tests::{Contract, Postern, raw};

/// One concrete path for each protected operation, with its method.
fn protected() -> Vec<(String, String)> {
    let fill = |path: &str| {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "a1" } else { part });
        parts.collect::<Vec<_>>().join("/")
    };
    let operations = Contract::shared().operations().iter().filter(|operation| operation.is_protected);
    operations.map(|operation| (operation.method.to_string(), fill(&operation.path))).collect()
}

/// Other spellings of a path that some server somewhere takes for the same.
fn spellings(path: &str) -> Vec<String> {
    let first = path.as_bytes()[1];
    let encoded = format!("/%{first:02x}{}", &path[2..]);
    let twice = format!("/%25{first:02x}{}", &path[2..]);
    let mut all: Vec<String> = [
        "{}", "{}/", "/{}", "//{}", "{}//", "/.{}", "/x/..{}", "/auth/login/..{}", "/auth/login/%2e%2e{}",
        "/auth/login%2f..{}", "/auth/login;{}", "/auth/login/../..{}", "{};a=b", "{}?", "{}?access_token=x", "{}#",
        "{}%00", "{}%20", "{}.", "{}.json", "{}%2f", "\\{}", "http://localhost{}", "http://localhost:8500{}",
        "HTTP://a@localhost{}", "https://localhost{}", "/webhooks/..{}", "/webhooks/twilio/../..{}",
        "/.well-known/..{}", "/auth/social/login?next={}", "*", "{}%c0%af", "{}\u{e9}", "/%2e{}", "/%2F{}",
    ]
    .iter()
    .map(|form| form.replace("{}", path))
    .collect();
    all.extend([path.to_uppercase(), encoded, twice, path.replace('/', "\\"), path.replace('/', "/./")]);
    all
}

/// Header sets that carry no valid token, however they look.
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

const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND", "X"];

async fn is_refused(address: SocketAddr, request: &str) {
    let answer = raw::send(address, request.as_bytes()).await;
    let status = answer.status.as_u16();
    assert!(matches!(status, 400 | 401 | 405 | 501 | 505), "{request:?} was answered {status}: {}", answer.text());
    if status == 401 && answer.status.as_u16() == 401 && !request.starts_with("HEAD ") {
        let body = answer.json();
        assert_eq!(body["status"], 401, "{request:?}: {body}");
        assert!(answer.header("www-authenticate").starts_with("Bearer"), "{request:?}");
    }
}

#[tokio::test]
async fn every_protected_path_without_a_token_is_401() {
    let postern = Postern::start().await;
    for (method, path) in protected() {
        let method = method.parse().expect("a method");
        let answer = postern.surface().client().request(method, &path).send().await;
        let refusal = answer.problem(401, "authentication_required");
        assert_eq!(refusal.headers["www-authenticate"], "Bearer", "no error is named where no token was sent");
    }
    let _ = postern.surface().client().get("/nothing").send().await.problem(401, "authentication_required");
    postern.stop().await;
}

#[tokio::test]
async fn no_spelling_of_a_path_passes_without_a_token() {
    let postern = Postern::start().await;
    let address = postern.surface().client().address();
    for (method, path) in protected() {
        for spelling in spellings(&path) {
            let head = format!("{method} {spelling} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            is_refused(address, &head).await;
        }
    }
    postern.stop().await;
}

#[tokio::test]
async fn no_header_and_no_method_passes_without_a_token() {
    let postern = Postern::start().await;
    let address = postern.surface().client().address();
    for (_, path) in protected() {
        for method in METHODS {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
            is_refused(address, &head).await;
        }
    }
    for (method, path) in protected() {
        for headers in HEADERS {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{headers}\r\n");
            is_refused(address, &head).await;
        }
        for version in ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 "] {
            is_refused(address, &format!("{method} {path} {version}\r\nHost: localhost\r\n\r\n")).await;
        }
    }
    postern.stop().await;
}

#[tokio::test]
async fn a_service_reaches_what_is_for_services_and_a_user_does_not() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let ada = surface.register().await;
    let body = json!({"actorId": uuid::Uuid::new_v4().to_string(), "email": "new@example.com", "profile": {}});
    let user = ada.client.post("/actors/register").json(&body).send().await;
    let _ = user.problem(401, "service_not_allowed");
    let auth = surface.client().with_token(&postern.service_token("auth").await);
    let saved = auth.post("/actors/register").json(&body).send().await.expect(201);
    assert_eq!(saved.string("/email"), "new@example.com");
    let other = surface.client().with_token(&postern.service_token("document").await);
    let _ = other.post("/actors/register").json(&body).send().await.problem(401, "service_not_allowed");
    let me = other.get("/auth/me").send().await.expect(200).json();
    assert_eq!((&me["kind"], &me["serviceId"]), (&json!("service"), &json!("document")));
    let feature = other.put("/admin/features/beta").json(&json!({"on": true})).send().await;
    let _ = feature.problem(401, "user_required");
    postern.stop().await;
}

#[tokio::test]
async fn only_an_access_token_of_a_user_passes_for_a_user() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    let with = |token: &str| postern.surface().client().with_token(token).get("/auth/me").send();
    let id_token = ada.tokens["idToken"].as_str().expect("a token");
    let _ = with(id_token).await.problem(401, "token_use_not_accepted");
    let access = ada.tokens["accessToken"].as_str().expect("a token");
    let flipped = flip_last_but_one(access);
    let _ = with(&flipped).await.problem(401, "token_signature_invalid");
    let refresh = ada.tokens["refreshToken"].as_str().expect("a token");
    let _ = with(refresh).await.problem(401, "token_malformed");
    let _ = with("a.b.c").await.problem(401, "token_malformed");
    postern.stop().await;
}

/// The same token with one bit of its signature turned.
fn flip_last_but_one(token: &str) -> String {
    let mut bytes = token.as_bytes().to_vec();
    let at = bytes.len() - 5;
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).expect("a token is ASCII")
}
