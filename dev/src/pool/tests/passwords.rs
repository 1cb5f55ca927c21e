use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{EMAIL, PASSWORD, RunningServer, hash, start};

const NEW_PASSWORD: &str = "Fresher-Horse-8";

impl RunningServer {
    /// Responds to NEW_PASSWORD_REQUIRED of the actor pool, with the secret hash over `hash_over`.
    async fn replace_password(
        &self,
        asked: &Value,
        name: &str,
        hash_over: &str,
    ) -> Result<Value, String> {
        let hash = hash(self.actor(), hash_over);
        let responses = [
            ("USERNAME", name),
            ("NEW_PASSWORD", NEW_PASSWORD),
            ("SECRET_HASH", &hash),
        ];
        self.respond(self.actor(), asked, responses.into()).await
    }
}

#[tokio::test]
async fn challenge_session_expires() {
    let pool = start().await;
    pool.create_user(EMAIL).await;
    let asked = pool.sign_in(EMAIL, PASSWORD).await;
    pool.clock.advance(Duration::from_secs(181));
    let late = pool.replace_password(&asked, EMAIL, EMAIL).await;
    let late = late.expect_err("late");
    assert!(late.contains("session is expired"), "{late}");
}

#[tokio::test]
async fn challenge_is_answered_under_any_name_of_the_user() {
    let pool = start().await;
    for (n, hashed_as_entered) in [(0, true), (1, false)] {
        let email = format!("ada{n}@example.com");
        let sub = pool.create_user(&email).await;
        let asked = pool.sign_in(&email, PASSWORD).await;
        let other = pool.replace_password(&asked, EMAIL, &sub).await;
        assert!(other.expect_err("another user").contains("Invalid session"));
        let hashed = if hashed_as_entered { &email } else { &sub };
        let answered = pool.replace_password(&asked, &email, hashed).await;
        answered.expect("answered");
    }
}

#[tokio::test]
async fn change_by_an_operator_ends_challenges_and_sign_ins() {
    let pool = start().await;
    let other = json!({ "Password": "Temporary-Horse-7" });
    for (operation, body) in [
        ("AdminSetUserPassword", &other),
        ("AdminUserGlobalSignOut", &json!({})),
        ("AdminDisableUser", &json!({})),
        ("AdminDeleteUser", &json!({})),
    ] {
        let email = format!("{}@example.com", operation.to_lowercase());
        let sub = pool.create_user(&email).await;
        let asked = pool.sign_in(&email, PASSWORD).await;
        pool.change(operation, &email, body.clone()).await;
        match operation {
            "AdminDisableUser" => drop(pool.change("AdminEnableUser", &email, json!({})).await),
            "AdminDeleteUser" => drop(pool.create_user(&email).await),
            _ => {}
        }
        let late = pool.replace_password(&asked, &sub, &sub).await;
        let late = late.expect_err("the challenge has ended");
        assert!(late.contains("Invalid session"), "{operation}: {late}");
    }
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await;
    pool.change("AdminSetUserPassword", EMAIL, other).await;
    let token = &tokens["AuthenticationResult"]["AccessToken"];
    let user = pool.call("GetUser", json!({ "AccessToken": token })).await;
    user.expect_err("the sign-in has ended");
}
