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
async fn concurrent_uses_of_code_succeed_once() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    pool.forgot(EMAIL).await.expect("sent");
    let code = pool.codes.recv().await.expect("a code").code;
    let attempts = join_all((0..8).map(|number| {
        let (pool, code) = (&pool, code.expose());
        async move {
            let password = format!("{NEW_PASSWORD}{number}");
            pool.confirm_forgot(EMAIL, code, &password).await
        }
    }));
    let outcomes: Vec<_> = attempts
        .await
        .into_iter()
        .map(|outcome| outcome.is_ok())
        .collect();
    assert_eq!(outcomes.iter().filter(|reset| **reset).count(), 1);
    let winner = outcomes.iter().position(|reset| *reset).expect("one");
    pool.sign_in(EMAIL, &format!("{NEW_PASSWORD}{winner}"))
        .await
        .expect("the winner's password");
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

#[tokio::test]
async fn password_reset_revokes_concurrent_sign_ins() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    pool.forgot(EMAIL).await.expect("sent");
    let code = pool.codes.recv().await.expect("a code").code;
    let sign_ins = join_all((0..12).map(|_| pool.sign_in(EMAIL, PASSWORD)));
    let reset = async {
        let reset = pool
            .confirm_forgot(EMAIL, code.expose(), NEW_PASSWORD)
            .await;
        reset.expect("reset");
    };
    let (signed_in, ()) = tokio::join!(sign_ins, reset);
    for tokens in signed_in.into_iter().flatten() {
        assert!(
            pool.get_user(&tokens).await.is_err(),
            "a sign-in with the old password is still valid"
        );
    }
}
