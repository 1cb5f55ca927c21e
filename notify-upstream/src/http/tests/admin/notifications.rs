//! Notifications: list, history, and changes of one.

use std::time::Duration;

use postern_core::testing::assert_members;

use super::*;

/// Returns the names of the events of a notification.
async fn events(served: &TestServer, id: &str) -> Vec<String> {
    let (status, shown) = served.read(&format!("notifications/{id}")).await;
    assert_eq!(status, 200, "{shown}");
    let entries = shown["entries"].as_array().expect("entries").iter();
    let names = entries.filter_map(|entry| entry["event"].as_str());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn operator_lists_and_shows_notifications_of_all() {
    for (mut served, _database) in servers().await {
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, page) = served.read("notifications?recipient=ada@example.com").await;
        let listed = &page["notifications"][0];
        assert_eq!(page["notifications"].as_array().map(Vec::len), Some(1));
        assert_eq!(page["nextCursor"], Value::Null);
        assert_eq!(status, 200);
        let expected = json!({ "notificationId": id, "recipient": { "email": "ada@example.com" },
            "creator": "service:auth", "locale": "en", "sendAt": null, "addressee": null });
        assert_members(listed, &expected);
        let (_, others) = served.read("notifications?recipient=eve@example.com").await;
        assert_eq!(others["notifications"], json!([]));
        let (status, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(status, 200);
        assert_eq!(shown["notification"]["status"], "SENT");
        let names = events(&served, &id).await;
        assert_eq!(names, ["QUEUED", "ATTEMPTED", "SENT"], "{shown}");
        let wrong = served.read("notifications?nonsense=1&status=X").await;
        assert_problem(&wrong, 400, "invalid_request", Some("?nonsense"));
        assert_eq!(wrong.1["errors"][1]["pointer"], "?status");
        let wrong = served.read("notifications?cursor=AAAA").await;
        assert_problem(&wrong, 400, "invalid_request", Some("?cursor"));
        for unknown in ["%27%20OR%201=1", UNKNOWN_ID] {
            let found = served.read(&format!("notifications/{unknown}")).await;
            assert_problem(&found, 404, "not_found", None);
        }
    }
}

#[tokio::test]
async fn dead_letter_is_retried_once_and_delivered() {
    for (mut served, _database) in servers().await {
        let (id, other) = (served.dead_letter().await, served.dead_letter().await);
        let path = format!("notifications/{id}/retry");
        let (log, _guard) = CapturedLog::start();
        let (status, retried) = served.change(&path, &json!({})).await;
        let expected = json!({ "notificationId": id, "status": "QUEUED" });
        assert_eq!((status, retried), (200, expected));
        let (before, after) = (json!("FAILED"), json!("QUEUED"));
        assert_logged(&log, "notification.retry", &id, &before, &after);
        let again = served.change(&path, &json!({})).await;
        assert_problem(&again, 422, "validation_failed", None);
        assert_eq!(log.with(&["administrative action"]), 1, "one change");
        let (_, letters) = served.read("dead").await;
        let left = letters["deadLetters"].as_array().expect("letters");
        assert_eq!((left.len(), &left[0]["notificationId"]), (1, &other.into()));
        served.deliver().await;
        assert_eq!(served.script.mails().len(), 3, "two refused, one sent");
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(shown["notification"]["status"], "SENT", "{shown}");
        for unknown in [UNKNOWN_ID, "x"] {
            let path = format!("notifications/{unknown}/retry");
            let found = served.change(&path, &json!({})).await;
            assert_problem(&found, 404, "not_found", None);
        }
    }
}

#[tokio::test]
async fn operator_cancels_what_waits_and_nothing_else() {
    for (mut served, _database) in servers().await {
        let mut scheduled = welcome();
        scheduled["sendAt"] = json!(START.plus(Duration::from_secs(3600)));
        let (waiting, other) = (
            served.accepted(&scheduled).await,
            served.accepted(&scheduled).await,
        );
        let (log, _guard) = CapturedLog::start();
        let path = format!("notifications/{waiting}/cancel");
        let (status, cancelled) = served.change(&path, &json!({})).await;
        let expected = json!({ "notificationId": waiting, "status": "CANCELLED" });
        assert_eq!((status, cancelled), (200, expected));
        let (before, after) = (json!("SCHEDULED"), json!("CANCELLED"));
        assert_logged(&log, "notification.cancel", &waiting, &before, &after);
        for _ in 0..2 {
            let by_creator = served.cancel(&waiting, "auth").await.0;
            assert_eq!(by_creator, StatusCode::NO_CONTENT, "cancelled already");
        }
        assert_eq!(events(&served, &waiting).await, ["SCHEDULED", "CANCELLED"]);
        let sent = served.accepted(&welcome()).await;
        served.deliver().await;
        let path = format!("notifications/{sent}/cancel");
        let found = served.change(&path, &json!({})).await;
        assert_problem(&found, 409, "already_attempted", None);
        let path = format!("notifications/{UNKNOWN_ID}/cancel");
        let found = served.change(&path, &json!({})).await;
        assert_problem(&found, 404, "not_found", None);
        assert_eq!(log.with(&["administrative action"]), 1, "{}", log.text());
        for (id, status) in [(&waiting, "CANCELLED"), (&other, "SCHEDULED")] {
            // As its creator sees it.
            let (_, _, view) = served.get(id, "auth", None).await;
            assert_eq!(view["status"], status, "{view}");
        }
    }
}
