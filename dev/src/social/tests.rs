use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use postern_core::clock::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tower::ServiceExt as _;

use super::*;

const CALLBACK: &str = "http://127.0.0.1:8500/auth/social/login/callback";
const ISSUER: &str = "http://127.0.0.1:8506";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

struct TestProvider {
    router: Router,
    clock: Clock,
}

fn start() -> TestProvider {
    let clock = Clock::manual(Timestamp(1_800_000_000_000));
    let key = SigningKey::generate().expect("key");
    let key = SigningKey::from_pkcs8(&key, "").expect("key");
    let client = RegisteredClient {
        id: "postern".to_owned(),
        secret: Secret::from("s/cret +:%"),
        redirect_uris: vec![CALLBACK.to_owned()],
    };
    let provider = SocialProvider::new(ISSUER.to_owned(), client, key, clock.clone());
    TestProvider {
        router: router(Arc::new(provider)),
        clock,
    }
}

fn challenge() -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER))
}

fn encode(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}

/// Returns a valid authorization request, with some parameters replaced, or omitted where the value
/// is empty.
fn authorization(changes: &[(&str, &str)]) -> String {
    let challenge = challenge();
    let mut pairs = vec![
        ("response_type", "code"),
        ("client_id", "postern"),
        ("redirect_uri", CALLBACK),
        ("scope", "openid email profile"),
        ("state", "st&te"),
        ("nonce", "n-1"),
        ("code_challenge", challenge.as_str()),
        ("code_challenge_method", "S256"),
    ];
    pairs.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
    encode(&pairs)
}

// === impl TestProvider ===

impl TestProvider {
    async fn send(
        &self,
        request: http::request::Builder,
        body: String,
    ) -> (u16, HeaderMap, String) {
        let request = request
            .header(HOST, "127.0.0.1:8506")
            .body(Body::from(body))
            .expect("request");
        let (parts, body) = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("answer")
            .into_parts();
        let bytes = to_bytes(body, 1 << 20).await.expect("body");
        (
            parts.status.as_u16(),
            parts.headers,
            String::from_utf8(bytes.to_vec()).expect("text"),
        )
    }

    async fn get(&self, path: &str) -> (u16, HeaderMap, String) {
        self.send(Request::get(path), String::new()).await
    }

    async fn post(&self, path: &str, form: String) -> (u16, HeaderMap, String) {
        let request = Request::post(path).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(request, form).await
    }

    /// Submits a choice. Returns the parameters of the redirect.
    async fn decide(&self, changes: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
        let (status, headers, _) = self.post("/authorize", authorization(changes)).await;
        assert_eq!(status, 303);
        let url = url::Url::parse(headers[LOCATION].to_str().expect("text")).expect("URL");
        assert!(url.as_str().starts_with(CALLBACK));
        url.query_pairs().into_owned().collect()
    }

    async fn token(&self, changes: &[(&str, &str)]) -> (u16, Value) {
        let mut pairs = vec![
            ("grant_type", "authorization_code"),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
            ("client_id", "postern"),
            ("client_secret", "s/cret +:%"),
        ];
        pairs.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
        let (status, headers, body) = self.post("/token", encode(&pairs)).await;
        assert_eq!(headers["cache-control"], "no-store");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    async fn oauth_error(&self, changes: &[(&str, &str)]) -> (u16, String) {
        let (status, body) = self.token(changes).await;
        (status, body["error"].as_str().expect("error").to_owned())
    }

    async fn code(&self) -> String {
        self.decide(&[("person", "ada")]).await["code"].clone()
    }
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("payload");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("JSON")
}

#[tokio::test]
async fn link_chooses_nobody() {
    let test = start();
    let chosen = authorization(&[("person", "ada")]);
    let (status, headers, page) = test.get(&format!("/authorize?{chosen}")).await;
    assert_eq!((status, headers.get(LOCATION)), (200, None));
    assert!(page.contains("Choose a person"), "{page}");
    let repeated = "type=\"hidden\" name=\"person\"";
    assert!(!page.contains(repeated), "{page}");
}

#[tokio::test]
async fn invalid_request_is_shown_and_not_redirected() {
    let test = start();
    for (changes, mistake) in [
        (("client_id", "other"), "client_id"),
        (
            (
                "redirect_uri",
                "http://127.0.0.1:8500/auth/social/login/callback/",
            ),
            "redirect_uri",
        ),
        (("redirect_uri", ""), "redirect_uri"),
        (("response_type", "token"), "response_type"),
        (("code_challenge", ""), "PKCE"),
        (("code_challenge_method", "plain"), "PKCE"),
    ] {
        let (status, headers, page) = test.post("/authorize", authorization(&[changes])).await;
        assert_eq!((status, headers.get(LOCATION)), (400, None), "{changes:?}");
        assert!(page.contains(mistake), "{changes:?}: {page}");
    }
    let back = test.decide(&[("person", "nobody")]).await;
    assert_eq!(
        (&*back["error"], &*back["state"]),
        ("access_denied", "st&te")
    );
    assert!(!back.contains_key("code"));
}

#[tokio::test]
async fn code_is_bound_single_use_and_expires() {
    let test = start();
    let grant = (400, "invalid_grant".to_owned());
    let other = "0123456789012345678901234567890123456789012";
    for changed in [
        ("code_verifier", other),
        ("code_verifier", ""),
        ("redirect_uri", "http://x/"),
    ] {
        let code = test.code().await;
        let refused = test.oauth_error(&[("code", &code), changed]).await;
        assert_eq!(refused, grant, "{changed:?}");
    }
    assert_eq!(test.oauth_error(&[("code", "unknown")]).await, grant);
    let late = test.code().await;
    test.clock.advance(Duration::from_secs(60));
    assert_eq!(test.oauth_error(&[("code", &late)]).await, grant);

    let code = test.code().await;
    assert_eq!(test.token(&[("code", &code)]).await.0, 200);
    assert_eq!(test.oauth_error(&[("code", &code)]).await, grant);
}

#[tokio::test]
async fn person_can_be_entered_in_form() {
    let test = start();
    let back = test
        .decide(&[
            ("person", "other"),
            ("name", "Kim <b>"),
            ("email", "kim@example.com"),
        ])
        .await;
    let (_, tokens) = test.token(&[("code", &back["code"])]).await;
    let id = claims(tokens["id_token"].as_str().expect("ID token"));
    assert_eq!(
        (&id["name"], &id["email_verified"]),
        (&"Kim <b>".into(), &false.into())
    );
    for person in ["other", "stranger"] {
        let refused = test.post("/authorize", authorization(&[("person", person)]));
        assert_eq!(refused.await.0, 400, "{person}");
    }
}

#[tokio::test]
async fn every_response_is_protected_from_frames() {
    let provider = start();
    for path in ["/authorize", "/jwks", "/.well-known/openid-configuration"] {
        let (_, headers, _) = provider.get(path).await;
        let policy = headers["content-security-policy"].to_str().expect("text");
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    }
}
