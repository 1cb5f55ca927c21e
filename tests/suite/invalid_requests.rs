//! Unreadable and unacceptable requests: each rejection has its status, code and all mistakes.

use http::Method;
use postern_tests::http_body::json;
use postern_tests::surface::welcome;
use postern_tests::{Answer, Client, Person, Postern};

const JSON: &str = "application/json";

async fn send(client: &Client, path: &str, body: &str) -> Answer {
    client.post(path).body(JSON, body.to_owned()).send().await
}

/// Paths that accept a JSON object, with a required field of each.
const TAKE_JSON: &[(&str, &str)] = &[
    ("/auth/login", "/email"),
    ("/auth/register", "/email"),
    ("/auth/register/confirm", "/code"),
    ("/auth/challenge", "/session"),
    ("/auth/tokens/exchange", "/temporaryToken"),
    ("/auth/tokens/refresh", "/refreshToken"),
    ("/auth/refresh-user-token", "/refreshToken"),
    ("/api/session", "/email"),
    ("/auth/logout", "/refreshToken"),
    ("/auth/password/forgot", "/email"),
    ("/auth/password/reset", "/newPassword"),
    ("/notifications", "/template"),
    ("/notification-batches", "/notifications"),
];

async fn every_path_refuses(ada: &Person, body: &str) {
    for (path, _) in TAKE_JSON {
        let refusal = send(&ada.client, path, body)
            .await
            .problem(400, "invalid_request");
        assert_eq!(refusal.pointers(), [""], "{path} {body}: {}", refusal.body);
    }
}

#[tokio::test]
async fn unreadable_body_is_rejected_on_every_path() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    for malformed in [
        "",
        "{",
        "{\"email\":}",
        "{} {}",
        "[1,]",
        "nul",
        "\u{feff}{}",
        "{\"a\":\"\\ud800\"}",
    ] {
        every_path_refuses(&ada, malformed).await;
    }
    for not_an_object in ["[]", "\"text\"", "7", "null"] {
        every_path_refuses(&ada, not_an_object).await;
    }
    for (path, required) in TAKE_JSON {
        let refusal = send(&ada.client, path, "{}")
            .await
            .problem(400, "invalid_request");
        assert!(
            refusal.pointers().iter().any(|pointer| pointer == required),
            "{path}: {}",
            refusal.body
        );
        let refusal = send(&ada.client, path, "{\"surprise\":1}")
            .await
            .problem(400, "invalid_request");
        assert!(
            refusal
                .pointers()
                .iter()
                .any(|pointer| pointer == "/surprise"),
            "{path}: {}",
            refusal.body
        );
    }
    postern.stop().await;
}

#[tokio::test]
async fn every_mistake_is_listed_at_once() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let client = surface.client();
    send(client, "/auth/login", r#"{"email":7,"paswort":"x"}"#)
        .await
        .problem(400, "invalid_request")
        .assert_pointers(&["/email", "/password", "/paswort"]);
    send(
        client,
        "/auth/login",
        r#"{"email":"ada@example.com","password":"x","password":"y"}"#,
    )
    .await
    .problem(400, "invalid_request")
    .assert_pointers(&["/password"]);
    send(
        client,
        "/auth/register",
        r#"{"email":"no address","password":null,"profile":{"firstName":[],"phone":5}}"#,
    )
    .await
    .problem(400, "invalid_request");
    let ada = surface.register().await;
    let wrong = json!({"channel": "fax", "recipient": {"actorId": ada.id}, "priority": "URGENT", "sendAt": "soon"});
    let refusal = ada
        .client
        .refuses("/notifications", &wrong, 400, "invalid_request")
        .await;
    refusal.assert_pointers(&["/channel", "/priority", "/sendAt", "/template"]);
    postern.stop().await;
}

#[tokio::test]
async fn readable_but_unacceptable_body_is_422() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let weak = json!({"email": "weak@example.com", "password": "short"});
    surface
        .client()
        .refuses("/auth/register", &weak, 422, "weak_password")
        .await;
    let ada = surface.register().await;
    let mut unknown = welcome(&ada.id);
    unknown["template"] = json!("no-such-template");
    let refusal = ada
        .client
        .refuses("/notifications", &unknown, 422, "unknown_template")
        .await;
    refusal.assert_pointers(&["/template"]);
    let mut missing = welcome(&ada.id);
    missing["variables"] = json!({});
    let refusal = ada
        .client
        .refuses("/notifications", &missing, 422, "validation_failed")
        .await;
    refusal.assert_pointers(&["/variables/name"]);
    postern.stop().await;
}

#[tokio::test]
async fn wrong_content_type_is_415_and_large_body_is_413() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    let large = format!("{{\"email\":\"{}\"}}", "a".repeat(3 << 20));
    for (path, _) in TAKE_JSON {
        for other in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
        ] {
            let answer = ada.client.post(path).body(other, "{}").send().await;
            let _ = answer.problem(415, "unsupported_media_type");
        }
        let _ = send(&ada.client, path, &large)
            .await
            .problem(413, "body_too_large");
    }
    let resume = ada.client.post("/resumes").body(JSON, "{}").send().await;
    let _ = resume.problem(415, "unsupported_media_type");
    postern.stop().await;
}

#[tokio::test]
async fn unknown_path_is_404_and_unknown_method_is_405() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    for path in [
        "/",
        "/nothing",
        "/auth",
        "/auth/login/",
        "/actors",
        "/notifications/1/2",
        "/admin/features",
    ] {
        let _ = ada.client.denied(path, 404, "not_found").await;
    }
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::PATCH] {
        let answer = ada
            .client
            .request(method, "/auth/login")
            .send()
            .await
            .problem(405, "method_not_allowed");
        assert_eq!(answer.headers["allow"], "POST");
    }
    postern.stop().await;
}

#[tokio::test]
async fn one_idempotency_key_sends_once() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    let post = |body| {
        ada.client
            .post("/notifications")
            .header("idempotency-key", "key-1")
            .json(&body)
            .send()
    };
    let first = post(welcome(&ada.id)).await.expect(201).json();
    let second = post(welcome(&ada.id)).await.expect(201).json();
    assert_eq!(first, second);
    let mut other = welcome(&ada.id);
    other["variables"]["name"] = json!("Bob");
    let _ = post(other).await.problem(409, "idempotency_key_reused");
    let bad = ada
        .client
        .post("/notifications")
        .header("idempotency-key", "a b")
        .json(&welcome(&ada.id))
        .send()
        .await;
    let _ = bad.problem(400, "invalid_header");
    postern.stop().await;
}
