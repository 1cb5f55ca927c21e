//! Queue and providers: their state, tests and pauses.

use super::*;
use crate::testing::pause_of;
use postern_core::testing::assert_members;

#[tokio::test]
async fn queue_shows_depth_and_age_by_priority() {
    for (mut served, _database) in servers().await {
        let mut low = welcome();
        low["priority"] = "LOW".into();
        served.accepted(&low).await;
        served.clock.advance(std::time::Duration::from_secs(90));
        let (status, queue) = served.read("queue").await;
        let queues = queue["queues"].as_array().expect("queues");
        assert_eq!((status, queues.len()), (200, 12), "{queue}");
        let waiting: Vec<_> = queues.iter().filter(|queue| queue["depth"] != 0).collect();
        assert_eq!(waiting.len(), 1, "{queue}");
        let expected = json!({"channel": "email", "priority": "LOW", "depth": 1, "retries": 0,
            "oldestAgeSeconds": 90.0, "oldestAt": START});
        assert_members(waiting[0], &expected);
        served.deliver().await;
    }
}

#[tokio::test]
async fn providers_show_their_calls_and_last_codes() {
    let (mut served, _database) = servers().await.remove(0);
    served.dead_letter().await;
    served.accepted(&welcome()).await;
    served.deliver().await;
    let (status, found) = served.read("providers").await;
    let provider = &found["providers"][0];
    assert_eq!(status, 200);
    assert_members(provider, &json!({"name": "script", "breaker": "closed"}));
    assert_members(&provider["calls"], &json!({"ok": 1, "refused": 1}));
    let replies = &provider["lastReplies"];
    assert_eq!(replies[0]["outcome"], "ok");
    assert_eq!(replies[1]["outcome"], "refused");
    assert!(replies[1]["code"].is_string(), "{found}");
}

#[tokio::test]
async fn provider_test_returns_the_reply_of_the_provider() {
    let (served, _database) = servers().await.remove(0);
    let (log, _guard) = CapturedLog::start();
    let to = json!({ "to": "ada@example.com" });
    let (status, reply) = served.change("providers/script/test", &to).await;
    assert_eq!((status, &reply["accepted"]), (200, &true.into()), "{reply}");
    assert_eq!(reply["code"], Value::Null, "{reply}");
    assert_eq!(served.script.mails()[0].to, "ada@example.com");
    let after = json!({ "accepted": true, "code": null });
    assert_logged(&log, "provider.test", "script", &Value::Null, &after);
    served.script.refuse(&["550 5.7.1"]);
    let (status, reply) = served.change("providers/script/test", &to).await;
    assert_eq!(
        (status, &reply["accepted"]),
        (200, &false.into()),
        "{reply}"
    );
    let detail = reply["detail"].as_str().expect("the reply");
    assert!(detail.contains("550 5.7.1"), "{reply}");
    assert_eq!(reply["retryAfterSeconds"], Value::Null, "{reply}");
    assert!(reply["code"].is_string(), "{reply}");
    let after = json!({ "accepted": false, "code": reply["code"] });
    assert_logged(&log, "provider.test", "script", &Value::Null, &after);
    let (_, page) = served.read("notifications").await;
    assert_eq!(page["notifications"], json!([]), "nothing is stored");
    let found = served.change("providers/other/test", &to).await;
    assert_problem(&found, 404, "not_found", None);
    let (actor, phone) = (json!({ "actorId": "ada" }), json!("+431234567"));
    for body in [json!({ "to": actor }), json!({ "to": phone }), json!({})] {
        let path = "providers/script/test";
        served.assert_refused(path, &body, "/to").await;
    }
    assert_eq!(log.with(&["administrative action"]), 2, "{}", log.text());
    let calls = served.script.mails().len();
    assert_eq!(calls, 2, "refused requests call nobody");
}

#[tokio::test]
async fn paused_provider_is_not_called_until_it_is_resumed() {
    for (mut served, _database) in servers().await {
        let path = |action: &str| format!("providers/script/{action}");
        let reason = json!({ "reason": "wrong sender" });
        let (log, _guard) = CapturedLog::start();
        let (status, body) = served.change(&path("pause"), &reason).await;
        assert_eq!(status, 200, "{body}");
        let paused = json!({ "operator": "ada", "at": START, "reason": "wrong sender" });
        assert_eq!(body, json!({ "name": "script", "paused": paused }));
        let (is, was) = (json!({ "isPaused": true }), json!({ "isPaused": false }));
        let after = json!({ "isPaused": true, "reason": "wrong sender" });
        assert_logged(&log, "provider.pause", "script", &was, &after);
        // A second pause changes nothing.
        let other = json!({ "reason": "other" });
        let (status, body) = served.change(&path("pause"), &other).await;
        let first = (200, &"wrong sender".into());
        assert_eq!((status, &body["paused"]["reason"]), first, "{body}");
        let after = json!({ "isPaused": true, "reason": "other" });
        assert_logged(&log, "provider.pause", "script", &is, &after);
        served.accepted(&welcome()).await;
        served.deliver().await;
        assert!(served.script.mails().is_empty(), "not called");
        let (_, found) = served.read("queue").await;
        assert_eq!(found["queues"][0]["waitReason"], "PROVIDER_PAUSED");
        assert!(found["queues"][0]["nextProbeAt"].is_null(), "{found}");
        let (_, found) = served.read("providers").await;
        let paused = &found["providers"][0]["paused"];
        assert_eq!(paused["operator"], "ada", "{found}");
        let to = json!({ "to": "ada@example.com" });
        let (status, reply) = served.change("providers/script/test", &to).await;
        assert_eq!((status, &reply["accepted"]), (200, &true.into()), "a test");
        let (status, body) = served.change(&path("resume"), &json!({})).await;
        assert_eq!((status, &body["paused"]), (200, &Value::Null), "{body}");
        assert_logged(&log, "provider.resume", "script", &is, &was);
        let (_, found) = served.read("providers").await;
        assert_eq!(found["providers"][0]["paused"], Value::Null, "{found}");
        served.deliver().await;
        let sent = served.script.mails().len();
        assert_eq!(sent, 2, "the test, and the message after the pause");
    }
}

#[tokio::test]
async fn invalid_pauses_are_refused_and_stale_ones_resumed() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let (log, _guard) = CapturedLog::start();
    for path in ["providers/other/pause", "providers/other/resume"] {
        let found = served.change(path, &json!({})).await;
        assert_problem(&found, 404, "not_found", None);
    }
    for (body, pointer) in [
        (json!({ "reason": "" }), "/reason"),
        (json!({ "reason": 1 }), "/reason"),
        (json!({ "reason": "x".repeat(201) }), "/reason"),
        (json!({ "reason": "a\u{1b}[2J" }), "/reason"),
        (json!({ "until": "2026" }), "/until"),
        (json!([]), ""),
    ] {
        let path = "providers/script/pause";
        served.assert_refused(path, &body, pointer).await;
    }
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
    assert!(ok(store.paused_providers()).await.is_empty());
    // The provider was renamed during its pause.
    assert!(ok(store.pause_provider(&pause_of("other"))).await);
    let resumed = served.change("providers/other/resume", &json!({})).await;
    assert_eq!(resumed, (200, json!({ "name": "other", "paused": null })));
    let (before, after) = (json!({ "isPaused": true }), json!({ "isPaused": false }));
    assert_logged(&log, "provider.resume", "other", &before, &after);
    assert!(ok(store.paused_providers()).await.is_empty());
}
