//! Access control: a valid token of the kind that the route requires.

use postern_tests::Postern;
use postern_tests::http_body::json;

use crate::auth_bypass::protected;

#[tokio::test]
async fn protected_path_without_a_token_is_401() {
    let postern = Postern::start().await;
    for (method, path) in protected() {
        let method = method.parse().expect("a method");
        let answer = postern
            .surface()
            .client()
            .request(method, &path)
            .send()
            .await;
        let refusal = answer.problem(401, "authentication_required");
        assert_eq!(
            refusal.headers["www-authenticate"], "Bearer",
            "no error is named where no token was sent"
        );
    }
    let _ = postern
        .surface()
        .client()
        .denied("/nothing", 401, "authentication_required")
        .await;
    postern.stop().await;
}

#[tokio::test]
async fn service_routes_accept_services_only() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let ada = surface.register().await;
    let body = json!({"actorId": uuid::Uuid::new_v4().to_string(), "email": "new@example.com", "profile": {}});
    let user = ada.client.post_json("/actors/register", &body).await;
    let _ = user.problem(401, "service_required");
    let auth = postern.service("auth").await;
    let saved = auth.posted("/actors/register", &body, 201).await;
    assert_eq!(saved.string("/email"), "new@example.com");
    let other = postern.service("document").await;
    let _ = other
        .refuses("/actors/register", &body, 401, "service_not_allowed")
        .await;
    let me = other.read("/auth/me").await;
    assert_eq!(
        (&me["kind"], &me["serviceId"]),
        (&json!("service"), &json!("document"))
    );
    let feature = other
        .put("/admin/features/beta")
        .json(&json!({"on": true}))
        .send()
        .await;
    let _ = feature.problem(401, "user_required");
    postern.stop().await;
}

#[tokio::test]
async fn only_a_user_access_token_identifies_a_user() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    let with = |token: &str| {
        postern
            .surface()
            .client()
            .with_token(token)
            .get("/auth/me")
            .send()
    };
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

/// Returns the token with one bit of its signature flipped.
fn flip_last_but_one(token: &str) -> String {
    let mut bytes = token.as_bytes().to_vec();
    let at = bytes.len() - 5;
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).expect("a token is ASCII")
}
