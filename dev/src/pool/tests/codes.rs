use super::harness::{EMAIL, PASSWORD, start};

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
