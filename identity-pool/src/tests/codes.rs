use super::harness::{EMAIL, PASSWORD, RunningServer, error_text, start};

#[tokio::test]
async fn codes_are_limited_to_ten_per_hour_for_any_name() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let actor = pool.actor();
    for name in [EMAIL, "nobody@example.com"] {
        let forgot = || {
            let call = pool
                .anonymous
                .forgot_password()
                .client_id(&actor.client_id)
                .username(name);
            call.set_secret_hash(actor.secret_hash(name)).send()
        };
        for _ in 0..10 {
            forgot().await.expect("sent");
        }
        let refused = forgot()
            .await
            .map_err(error_text)
            .expect_err("the eleventh");
        assert!(refused.starts_with("LimitExceededException"), "{refused}");
        pool.clock.advance(std::time::Duration::from_secs(3601));
        forgot().await.expect("an hour later");
    }
}

/// Returns the next code that was delivered.
async fn next_code(pool: &mut RunningServer) -> String {
    let mail = pool.codes.recv().await.expect("a code");
    mail.code.expose().to_owned()
}

#[tokio::test]
async fn new_code_does_not_reset_wrong_attempts() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let actor = pool.actor().clone();
    let anonymous = pool.anonymous.clone();
    let forgot = || {
        let call = anonymous
            .forgot_password()
            .client_id(&actor.client_id)
            .username(EMAIL);
        call.set_secret_hash(actor.secret_hash(EMAIL)).send()
    };
    let confirm = |code: &str| {
        let call = anonymous
            .confirm_forgot_password()
            .client_id(&actor.client_id)
            .username(EMAIL);
        let call = call
            .set_secret_hash(actor.secret_hash(EMAIL))
            .confirmation_code(code);
        call.password("Another-Horse-9").send()
    };
    let mut code = String::new();
    for _ in 0..4 {
        forgot().await.expect("sent");
        code = next_code(&mut pool).await;
        let wrong = if code == "000000" { "000001" } else { "000000" };
        for _ in 0..5 {
            let refused = confirm(wrong).await.map_err(error_text).expect_err("wrong");
            assert!(refused.starts_with("CodeMismatchException"), "{refused}");
        }
    }
    let refused = confirm("999999999")
        .await
        .map_err(error_text)
        .expect_err("the sixth of this code");
    assert!(refused.starts_with("LimitExceededException"), "{refused}");
    // The fifth code of this hour is invalid from the start, even if entered correctly.
    forgot().await.expect("sent");
    let fifth = next_code(&mut pool).await;
    let refused = confirm(&fifth)
        .await
        .map_err(error_text)
        .expect_err("the attempts of the hour are exhausted");
    assert!(refused.starts_with("LimitExceededException"), "{refused}");
    confirm(&code)
        .await
        .map_err(error_text)
        .expect_err("an earlier code");
    pool.clock.advance(std::time::Duration::from_secs(3601));
    forgot().await.expect("sent");
    let code = next_code(&mut pool).await;
    confirm(&code).await.expect("an hour later");
}
