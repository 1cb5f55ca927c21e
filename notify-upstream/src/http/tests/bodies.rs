//! Memory of request bodies is bounded by bytes, not by the number of requests.

use std::time::Duration;

use super::*;

/// Timeout for responses that do not wait for a commit.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a notification of about 60,000 bytes.
fn large() -> Value {
    let mut body = welcome();
    body["variables"]["blob"] = "x".repeat(60_000).into();
    body
}

async fn until_waiting(service: &TestServer, waiting: usize, committer: &GroupCommitter) {
    while committer.waiting() < waiting {
        assert!(!service.shutdown.is_cancelled());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn body_stays_charged_until_commit_after_client_disconnects() {
    for (store, _database) in stores().await {
        let limits = Limits {
            body: 70_000,
            bodies: BodyBudgets::split(300_000),
            ..Limits::default()
        };
        let (served, mut committer) = served_within(&store, limits).await;
        let served = Arc::new(served);
        let ask = || {
            let served = Arc::clone(&served);
            tokio::spawn(async move { served.post("/notifications", &[], &large()).await })
        };
        let (first, second) = (ask(), ask());
        until_waiting(&served, 2, &committer).await;
        for _ in 0..2 {
            let request = served
                .client
                .post(format!("{}/notifications", served.url))
                .json(&large());
            let asked = request.bearer_auth(served.service_token("auth")).send();
            let refused = tokio::time::timeout(RESPONSE_TIMEOUT, asked)
                .await
                .expect("an immediate response")
                .expect("a response");
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(refused.headers().contains_key("retry-after"));
            let problem: Value = refused.json().await.expect("JSON");
            assert_eq!(problem["code"], "unavailable");
            // The submission is committed although its client has disconnected.
            second.abort();
        }
        let small = tokio::spawn({
            let served = Arc::clone(&served);
            async move { served.post("/notifications", &[], &welcome()).await.0 }
        });
        until_waiting(&served, 3, &committer).await;
        committer.step().await;
        assert_eq!(ok(first).await.0, StatusCode::CREATED);
        assert_eq!(ok(small).await, StatusCode::CREATED);
        tokio::spawn(committer.run());
        let again = ok(ask()).await.0;
        assert_eq!(again, StatusCode::CREATED, "the budget is available again");
    }
}
