use super::harness::{EMAIL, PASSWORD, RunningServer, start};

#[tokio::test]
async fn codes_are_limited_to_ten_per_hour_for_any_name() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    for name in [EMAIL, "nobody@example.com"] {
        let forgot = || pool.forgot(name);
        for _ in 0..10 {
            forgot().await.expect("sent");
        }
        let refused = forgot().await.expect_err("the eleventh");
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

async fn confirm(pool: &RunningServer, code: &str) -> Result<(), String> {
    pool.confirm_forgot(EMAIL, code, "Another-Horse-9").await
}

#[tokio::test]
async fn new_code_does_not_reset_wrong_attempts() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let mut code = String::new();
    for _ in 0..4 {
        pool.forgot(EMAIL).await.expect("sent");
        code = next_code(&mut pool).await;
        let wrong = if code == "000000" { "000001" } else { "000000" };
        for _ in 0..5 {
            let refused = confirm(&pool, wrong).await.expect_err("wrong");
            assert!(refused.starts_with("CodeMismatchException"), "{refused}");
        }
    }
    let refused = confirm(&pool, "999999999")
        .await
        .expect_err("the sixth of this code");
    assert!(refused.starts_with("LimitExceededException"), "{refused}");
    // The fifth code of this hour is invalid from the start, even if entered correctly.
    pool.forgot(EMAIL).await.expect("sent");
    let fifth = next_code(&mut pool).await;
    let refused = confirm(&pool, &fifth)
        .await
        .expect_err("the attempts of the hour are exhausted");
    assert!(refused.starts_with("LimitExceededException"), "{refused}");
    confirm(&pool, &code).await.expect_err("an earlier code");
    pool.clock.advance(std::time::Duration::from_secs(3601));
    pool.forgot(EMAIL).await.expect("sent");
    let code = next_code(&mut pool).await;
    confirm(&pool, &code).await.expect("an hour later");
}
