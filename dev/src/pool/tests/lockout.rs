use super::harness::start;

const LOCKED_ERROR: &str = "NotAuthorizedException: Password attempts exceeded";

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
