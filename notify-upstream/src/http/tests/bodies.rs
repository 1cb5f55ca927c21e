//! Memory is bounded by bytes, not by how many ask.

use std::time::Duration;

use super::*;

/// For an answer that does not wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A notification of some sixty thousand bytes.
fn large() -> Value {
    let mut body = welcome();
    body["variables"]["blob"] = "x".repeat(60_000).into();
    body
}

async fn until_waiting(service: &Served, waiting: usize, writer: &Writer) {
    while writer.waiting() < waiting {
        assert!(!service.shutdown.is_cancelled());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn bodies_stay_charged_until_their_commit_though_the_client_is_gone() {
    for (store, _database) in stores().await {
        let limits = Limits {
            body: 70_000,
            bodies: BodyBudgets::split(300_000),
            ..Limits::default()
        };
        let (served, mut writer) = served_within(&store, limits).await;
        let served = Arc::new(served);
        let ask = || {
            let served = Arc::clone(&served);
            tokio::spawn(async move { served.post("/notifications", &[], &large()).await })
        };
        let (first, second) = (ask(), ask());
        until_waiting(&served, 2, &writer).await;
        for _ in 0..2 {
            let request = served
                .client
                .post(format!("{}/notifications", served.url))
                .json(&large());
            let asked = request.bearer_auth(served.service_token("auth")).send();
            let refused = tokio::time::timeout(PATIENCE, asked)
                .await
                .expect("at once")
                .expect("answers");
            assert_eq!(
                (
                    refused.status().as_u16(),
                    refused.headers().contains_key("retry-after")
                ),
                (503, true)
            );
            let problem: Value = refused.json().await.expect("JSON");
            assert_eq!(problem["code"], "unavailable");
            // The rows are on their way to the store all the same.
            second.abort();
        }
        let small = tokio::spawn({
            let served = Arc::clone(&served);
            async move { served.post("/notifications", &[], &welcome()).await.0 }
        });
        until_waiting(&served, 3, &writer).await;
        writer.step().await;
        assert_eq!(
            (
                first.await.expect("no panic").0,
                small.await.expect("no panic")
            ),
            (StatusCode::CREATED, StatusCode::CREATED)
        );
        tokio::spawn(writer.run());
        assert_eq!(
            ask().await.expect("no panic").0,
            StatusCode::CREATED,
            "there is room again"
        );
        served.shutdown.cancel();
    }
}
