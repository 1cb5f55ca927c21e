use std::time::Duration;

use super::harness::{EMAIL, PASSWORD, RunningServer, start};

const WRONG_PASSWORD_ERROR: &str = "NotAuthorizedException: Incorrect username or password.";
const LOCKED_ERROR: &str = "NotAuthorizedException: Password attempts exceeded";

async fn fail_sign_ins(pool: &RunningServer, name: &str, times: usize) {
    for _ in 0..times {
        assert_eq!(
            pool.sign_in(name, "Wrong-Horse-9")
                .await
                .expect_err("wrong"),
            WRONG_PASSWORD_ERROR
        );
    }
}

#[tokio::test]
async fn five_failures_lock_for_a_doubling_time() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    for name in [EMAIL, "nobody@example.com"] {
        fail_sign_ins(&pool, name, 5).await;
        assert_eq!(
            pool.sign_in(name, PASSWORD).await.expect_err("locked"),
            LOCKED_ERROR
        );
        pool.clock.advance(Duration::from_millis(1001));
        fail_sign_ins(&pool, name, 1).await;
        pool.clock.advance(Duration::from_millis(1001));
        assert_eq!(
            pool.sign_in(name, PASSWORD).await.expect_err("two seconds"),
            LOCKED_ERROR
        );
        pool.clock.advance(Duration::from_millis(1000));
    }
    pool.sign_in(EMAIL, PASSWORD)
        .await
        .expect("a legitimate user signs in");
    fail_sign_ins(&pool, EMAIL, 4).await;
    pool.sign_in(EMAIL, PASSWORD)
        .await
        .expect("the count restarted");
}

#[tokio::test]
async fn failure_count_restarts_after_fifteen_minutes() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    fail_sign_ins(&pool, EMAIL, 5).await;
    pool.clock.advance(Duration::from_secs(16 * 60));
    fail_sign_ins(&pool, EMAIL, 4).await;
    pool.sign_in(EMAIL, PASSWORD).await.expect("not locked");
}

#[tokio::test]
async fn refresh_token_works_during_lockout() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    fail_sign_ins(&pool, EMAIL, 5).await;
    let actor = pool.actor();
    let secret = actor.client_secret.clone().expect("a secret");
    let call = pool
        .anonymous
        .get_tokens_from_refresh_token()
        .client_id(&actor.client_id);
    let call = call
        .client_secret(secret.expose())
        .refresh_token(tokens.refresh_token().expect("refresh token"));
    call.send()
        .await
        .expect("failures of another name are not counted");
}

#[tokio::test]
async fn lockout_does_not_reveal_whether_user_exists() {
    let pool = start().await;
    let mut answers = Vec::new();
    for (name, in_capitals) in [("notify", "NOTIFY"), ("nobody", "NOBODY")] {
        for _ in 0..5 {
            pool.initiate(pool.service(), name, "Wrong-Horse-9")
                .await
                .expect_err("wrong");
        }
        let again = pool
            .initiate(pool.service(), name, "Wrong-Horse-9")
            .await
            .expect_err("locked");
        assert_eq!(again, LOCKED_ERROR);
        answers.push(
            pool.initiate(pool.service(), in_capitals, "Wrong-Horse-9")
                .await
                .expect_err("wrong"),
        );
    }
    assert_eq!(
        answers[0], answers[1],
        "another name, whether a user has the first or not"
    );
}
