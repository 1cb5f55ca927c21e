//! Account enumeration: responses for known, unknown, disabled and social-only accounts are
//! identical. That the same work is done for every account is tested in the pool.

use http::{HeaderMap, StatusCode};
use postern_harness::json;
use postern_harness::pools::administrator;
use postern_harness::public_api::text;
use postern_harness::{Answer, PublicApi, Standalone};
use serde_json::Value;

/// Returns a response without the parts that differ between requests.
fn comparable(answer: &Answer) -> (StatusCode, HeaderMap, String) {
    let mut headers = answer.headers.clone();
    let id = headers.remove("x-request-id");
    headers.remove("date");
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    if let Some(body) = body.as_object_mut() {
        let id = id.as_ref().and_then(|id| id.to_str().ok());
        assert!(id.is_some());
        assert_eq!(body["requestId"].as_str(), id);
        body.remove("requestId");
    }
    (answer.status, headers, body.to_string())
}

#[track_caller]
fn all_the_same(answers: &[(&str, Answer)]) {
    let (first_name, first) = &answers[0];
    for (name, answer) in answers {
        assert_eq!(
            comparable(answer),
            comparable(first),
            "{name} and {first_name}"
        );
    }
}

async fn disable(surface: &PublicApi, email: &str) {
    let (admin, identity) = administrator(surface).await;
    let call = admin.admin_disable_user().username(email);
    let call = call.user_pool_id(&identity.actor.pool_id);
    Box::pin(call.send()).await.expect("disabled");
}

/// Posts each body and asserts the status. Returns the responses by name.
async fn post_each(
    surface: &PublicApi,
    path: &str,
    bodies: [(&'static str, Value); 4],
    status: u16,
) -> Vec<(&'static str, Answer)> {
    let mut answers = Vec::new();
    for (name, body) in bodies {
        let answer = surface.client().post_json(path, &body).await;
        answers.push((name, answer.expect(status)));
    }
    answers
}

#[tokio::test]
async fn responses_do_not_reveal_whether_an_account_exists() {
    let postern = Standalone::start().await;
    let surface = postern.surface();
    let (known, disabled) = (surface.register().await, surface.register().await);
    let social = surface.social_token("grace").await;
    let social = surface.exchange(&social).await.expect(200).json();
    disable(surface, &disabled.email).await;
    let accounts = [
        ("known", known.email.as_str()),
        ("unknown", "nobody@example.com"),
        ("disabled", disabled.email.as_str()),
        ("social-only", "grace.social@example.com"),
    ];
    let each = |body: fn(&str) -> Value| accounts.map(|(name, email)| (name, body(email)));
    let login = each(|email| json!({"email": email, "password": "a wrong password"}));
    all_the_same(&post_each(surface, "/auth/login", login, 401).await);
    let forgot = each(|email| json!({ "email": email }));
    all_the_same(&post_each(surface, "/auth/password/forgot", forgot, 204).await);
    let reset = each(
        |email| json!({"email": email, "code": "000000", "newPassword": "Another horse battery 9"}),
    );
    all_the_same(&post_each(surface, "/auth/password/reset", reset, 422).await);
    // Invalid refresh tokens, and those of users who lost them in different ways.
    disable(surface, &known.email).await;
    disable(surface, "grace.social@example.com").await;
    let refresh = [
        ("never one", "never a token"),
        ("disabled", text(&disabled.tokens, "refreshToken")),
        ("disabled later", text(&known.tokens, "refreshToken")),
        ("social-only", text(&social["tokens"], "refreshToken")),
    ]
    .map(|(name, token)| (name, json!({ "refreshToken": token })));
    all_the_same(&post_each(surface, "/auth/tokens/refresh", refresh, 401).await);
    postern.stop().await;
}
