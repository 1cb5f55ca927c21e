use std::time::Duration;

use super::harness::{EMAIL, PASSWORD, start};

const NEW_PASSWORD: &str = "Fresher-Horse-8";

#[tokio::test]
async fn challenge_session_expires() {
    let pool = start().await;
    let actor = pool.actor();
    pool.create_user(EMAIL, Some(PASSWORD)).await;
    let asked = pool.initiate(actor, EMAIL, PASSWORD).await.expect("asked");
    pool.clock.advance(Duration::from_secs(181));
    let late = pool
        .replace_password(&asked, EMAIL, EMAIL, NEW_PASSWORD)
        .await;
    let late = late.expect_err("late");
    assert!(late.contains("session is expired"), "{late}");
}

#[tokio::test]
async fn challenge_is_answered_under_any_name_of_the_user() {
    let pool = start().await;
    for (n, hashed_as_entered) in [(0, true), (1, false)] {
        let email = format!("ada{n}@example.com");
        let sub = pool.create_user(&email, Some(PASSWORD)).await;
        let asked = pool.initiate(pool.actor(), &email, PASSWORD).await;
        let asked = asked.expect("asked");
        let other = pool
            .replace_password(&asked, EMAIL, &sub, NEW_PASSWORD)
            .await;
        assert!(other.expect_err("another user").contains("Invalid session"));
        let hashed = if hashed_as_entered { &email } else { &sub };
        let answered = pool.replace_password(&asked, &email, hashed, NEW_PASSWORD);
        answered.await.expect("answered");
    }
}

#[tokio::test]
async fn change_by_an_operator_ends_challenges_and_sign_ins() {
    const OTHER: &str = "Temporary-Horse-7";
    let pool = start().await;
    let id = &pool.actor().pool_id;
    for action in ["password", "sign-out", "disable", "delete"] {
        let email = format!("{action}@example.com");
        let sub = pool.create_user(&email, Some(PASSWORD)).await;
        let asked = pool.initiate(pool.actor(), &email, PASSWORD).await;
        let asked = asked.expect("asked");
        match action {
            "password" => {
                let call = pool.admin.admin_set_user_password().user_pool_id(id);
                let call = call.username(&email).password(OTHER).send();
                call.await.expect("set");
            }
            "sign-out" => {
                let call = pool.admin.admin_user_global_sign_out().user_pool_id(id);
                call.username(&email).send().await.expect("signed out");
            }
            "disable" => {
                pool.set_enabled(&email, false).await;
                pool.set_enabled(&email, true).await;
            }
            _ => {
                let call = pool.admin.admin_delete_user().user_pool_id(id);
                call.username(&email).send().await.expect("deleted");
                pool.create_user(&email, Some(PASSWORD)).await;
            }
        }
        let late = pool
            .replace_password(&asked, &sub, &sub, NEW_PASSWORD)
            .await;
        let late = late.expect_err("the challenge has ended");
        assert!(late.contains("Invalid session"), "{action}: {late}");
    }
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    pool.set_password(EMAIL, OTHER).await;
    assert!(
        pool.get_user(&tokens).await.is_err(),
        "the sign-in has ended"
    );
}
