//! Status requests and their tags.

use super::*;

#[tokio::test]
async fn replicas_return_the_same_status_and_tag() {
    for (store, _database) in stores().await {
        // SQLite has a single process.
        if !store.is_shared() {
            continue;
        }
        let (mut first, second) = (served(&store).await, served(&store).await);
        let id = first.accepted(&welcome()).await;
        let (status, queued, view) = second.get(&id, "auth", None).await;
        // The two replicas have different issuers; the same service is the same creator at both.
        assert_eq!(status, StatusCode::OK);
        assert_eq!(view["status"], "QUEUED");
        first.deliver().await;
        let (_, tag, view) = first.get(&id, "auth", None).await;
        assert_eq!(view["status"], "SENT");
        let (_, _, view) = second.get(&id, "auth", queued.as_deref()).await;
        assert_eq!(view["status"], "SENT");
        let (status, ..) = second.get(&id, "auth", tag.as_deref()).await;
        assert_eq!(status, StatusCode::NOT_MODIFIED);
    }
}

#[tokio::test]
async fn cancellation_of_a_scheduled_notification_is_idempotent() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let mut later = welcome();
        later["sendAt"] = crate::testing::after(60).to_string().into();
        let id = served.accepted(&later).await;
        for _ in 0..2 {
            let (status, _) = served.cancel(&id, "auth").await;
            assert_eq!(status, StatusCode::NO_CONTENT);
        }
        let (_, _, view) = served.get(&id, "auth", None).await;
        assert_eq!(view["status"], "CANCELLED");
    }
}
