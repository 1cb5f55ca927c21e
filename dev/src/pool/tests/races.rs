use futures_util::future::join_all;

use super::harness::{EMAIL, PASSWORD, error_text, start};

const NEW_PASSWORD: &str = "Fresher-Horse-8";

#[tokio::test]
async fn concurrent_sign_ups_of_one_address_succeed_once() {
    let pool = start().await;
    let actor = pool.actor();
    let attempts = join_all((0..8).map(|_| {
        let call = pool
            .anonymous
            .sign_up()
            .client_id(&actor.client_id)
            .username(EMAIL)
            .password(PASSWORD);
        call.set_secret_hash(actor.secret_hash(EMAIL)).send()
    }));
    let (made, refused): (Vec<_>, Vec<_>) = attempts.await.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1);
    for attempt in refused {
        let refused = attempt.map_err(error_text).expect_err("rejected");
        assert!(refused.starts_with("UsernameExistsException"), "{refused}");
    }
}

#[tokio::test]
async fn concurrent_challenge_responses_succeed_once() {
    let pool = start().await;
    let actor = pool.actor();
    let sub = pool.create_user(EMAIL, Some(PASSWORD)).await;
    let asked = pool.initiate(actor, EMAIL, PASSWORD).await.expect("asked");
    let attempts = join_all((0..8).map(|number| {
        let (pool, asked, sub) = (&pool, &asked, &sub);
        async move {
            let password = format!("{NEW_PASSWORD}{number}");
            pool.replace_password(asked, sub, sub, &password).await
        }
    }));
    let answered = attempts.await.into_iter().filter(Result::is_ok).count();
    assert_eq!(answered, 1);
}
