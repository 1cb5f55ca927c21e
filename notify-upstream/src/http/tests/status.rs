//! Polling the status.

use super::*;

#[tokio::test]
async fn a_status_that_was_read_is_remembered_and_forgotten_with_the_next_write() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let (_, created) = served.post("/notifications", &[], &welcome()).await;
        let id = created["notificationId"]
            .as_str()
            .expect("an id")
            .to_owned();
        let (_, queued, _) = served.get(&id, "auth", None).await;
        assert_eq!(
            served.get(&id, "notify", None).await.0,
            StatusCode::NOT_FOUND,
            "remembered for its creator alone"
        );
        served.deliver().await;
        let (status, sent, view) = served.get(&id, "auth", queued.as_deref()).await;
        assert_eq!((status, &view["status"]), (StatusCode::OK, &"SENT".into()));
        assert_eq!(
            served.get(&id, "auth", sent.as_deref()).await.0,
            StatusCode::NOT_MODIFIED
        );
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn who_polls_two_replicas_never_sees_the_status_go_back() {
    for (store, _database) in stores().await {
        // Over SQLite there is one process.
        if !store.is_shared() {
            continue;
        }
        let (mut first, second) = (served(&store).await, served(&store).await);
        let (_, created) = first.post("/notifications", &[], &welcome()).await;
        let id = created["notificationId"]
            .as_str()
            .expect("an id")
            .to_owned();
        let (status, queued, view) = second.get(&id, "auth", None).await;
        // The two have issuers of their own; the same service is the same creator at both.
        assert_eq!(
            (status, &view["status"]),
            (StatusCode::OK, &"QUEUED".into())
        );
        first.deliver().await;
        let (_, tag, view) = first.get(&id, "auth", None).await;
        assert_eq!(view["status"], "SENT");
        // The second still remembers QUEUED, which is good for whoever has seen nothing newer.
        assert_eq!(
            second.get(&id, "auth", queued.as_deref()).await.0,
            StatusCode::NOT_MODIFIED
        );
        let (_, _, view) = second.get(&id, "auth", None).await;
        assert_eq!(
            view["status"], "SENT",
            "whoever does not say what it has seen may have seen SENT"
        );
        assert_eq!(
            second.get(&id, "auth", tag.as_deref()).await.0,
            StatusCode::NOT_MODIFIED
        );
        for served in [first, second] {
            served.shutdown.cancel();
        }
    }
}
