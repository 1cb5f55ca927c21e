//! Dead letters: list, and changes of a selection.

use std::time::Duration;

use super::*;

const WRONG_QUERIES: [(&str, &str); 8] = [
    ("channel=fax", "?channel"),
    ("limit=0", "?limit"),
    ("limit=1001", "?limit"),
    ("code=", "?code"),
    ("x=1", "?x"),
    ("before=now", "?before"),
    ("since=now", "?since"),
    ("template=..", "?template"),
];

impl TestServer {
    /// Returns the identifiers of the dead letters of a query.
    async fn dead(&self, query: &str) -> Vec<Value> {
        let (status, found) = self.read(&format!("dead?{query}")).await;
        assert_eq!(status, 200, "{query} {found}");
        let letters = found["deadLetters"].as_array().expect("letters");
        letters
            .iter()
            .map(|it| it["notificationId"].clone())
            .collect()
    }
}

#[tokio::test]
async fn dead_letters_are_selected_by_every_property() {
    for (mut served, _database) in servers().await {
        let id = served.dead_letter().await;
        let (_, all) = served.read("dead").await;
        let letter = &all["deadLetters"][0];
        let code = letter["code"].as_str().expect("a code").to_owned();
        assert_eq!(code, "message_refused_by_policy");
        let expected = json!({
            "notificationId": id, "at": START, "channel": "email", "priority": "NORMAL", "attempts": 1,
            "code": code, "recipientKind": "email", "template": "welcome", "provider": "script",
            "lastReply": "550 5.7.1",
        });
        assert_eq!(*letter, expected);
        for (query, count) in [
            (&*format!("code={code}"), 1),
            ("provider=script&template=welcome&channel=email", 1),
            ("code=%25", 0),
            ("provider=other", 0),
            ("template=other", 0),
            ("channel=sms", 0),
            ("before=2000-01-01T00:00:00Z", 0),
            ("since=2100-01-01T00:00:00Z", 0),
        ] {
            assert_eq!(served.dead(query).await.len(), count, "{query}");
        }
        served.assert_queries_refused("dead", &WRONG_QUERIES).await;
        let other = served.dead_letter().await;
        let (_, first) = served.read("dead?limit=1").await;
        assert_eq!(first["isTruncated"], true, "{first}");
        assert_eq!(served.dead("limit=1").await, [json!(id)], "the oldest");
        assert_eq!(served.dead("").await, [json!(id), json!(other)]);
    }
}

#[tokio::test]
async fn change_of_dead_letters_needs_a_valid_selector() {
    let (mut served, _database) = servers().await.remove(0);
    served.dead_letter().await;
    let (log, _guard) = CapturedLog::start();
    let path = "dead/retry";
    for (selector, pointer) in [
        (json!({}), "/selector"),
        (json!({ "code": "x", "all": true }), "/selector/all"),
        (json!({ "code": "" }), "/selector/code"),
        (json!({ "provider": "a b" }), "/selector/provider"),
        (json!({ "template": "a b" }), "/selector/template"),
        (json!({ "channel": "fax" }), "/selector/channel"),
        (json!({ "before": "1h" }), "/selector/before"),
        (json!({ "since": "1h" }), "/selector/since"),
        (json!("all"), "/selector"),
    ] {
        let body = json!({ "selector": selector });
        served.assert_refused(path, &body, pointer).await;
    }
    served.assert_refused(path, &json!({}), "/selector").await;
    let body = json!({ "selector": { "code": "x" }, "dryRun": 1 });
    served.assert_refused(path, &body, "/dryRun").await;
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
    assert_eq!(served.dead("").await.len(), 1);
}

/// The target of a change of the dead letters of a provider and a channel.
const SELECTED: &str = r#"{"before":null,"channel":"email","code":null,"provider":"script","since":null,"template":null}"#;

#[tokio::test]
async fn preview_of_a_retry_changes_nothing_and_names_no_person() {
    for (mut served, _database) in servers().await {
        served.dead_letter().await;
        served.dead_letter().await;
        let selector = json!({ "provider": "script", "channel": "email" });
        let dry = json!({ "selector": selector, "dryRun": true });
        let (log, _guard) = CapturedLog::start();
        let headers = [("authorization", BEARER)];
        let preview = json!({ "count": 2, "dryRun": true, "isTruncated": false });
        let found = served.call(Method::POST, "dead/retry", &headers, Some(&dry));
        assert_eq!(found.await, (200, preview));
        let other = json!({ "selector": { "provider": "other" } });
        assert_eq!(served.change("dead/retry", &other).await.1["count"], 0);
        assert_eq!(served.dead("").await.len(), 2);
        let selected = json!({ "selector": selector });
        let retried = json!({ "count": 2, "dryRun": false, "isTruncated": false });
        assert_eq!(served.change("dead/retry", &selected).await, (200, retried));
        assert_logged(&log, "dead.retry", SELECTED, &Value::Null, &json!(2));
        assert!(served.dead("").await.is_empty());
    }
}

#[tokio::test]
async fn selected_dead_letters_are_queued_and_delivered() {
    for (mut served, _database) in servers().await {
        let old = served.dead_letter().await;
        served.clock.advance(Duration::from_secs(1));
        let middle = served.clock.now();
        served.clock.advance(Duration::from_secs(1));
        let new = served.dead_letter().await;
        let none = json!({ "selector": { "since": middle, "before": middle }, "dryRun": true });
        assert_eq!(served.change("dead/retry", &none).await.1["count"], 0);
        let (log, _guard) = CapturedLog::start();
        let later = served.dead(&format!("since={middle}")).await;
        assert_eq!(later, [json!(new)]);
        let body = json!({ "selector": { "before": middle } });
        let found = served.change("dead/retry", &body).await;
        let queued = json!({ "count": 1, "dryRun": false, "isTruncated": false });
        assert_eq!(found, (200, queued));
        let target = json!({ "before": middle, "channel": null, "code": null, "provider": null, "since": null, "template": null });
        let target = target.to_string();
        assert_logged(&log, "dead.retry", &target, &Value::Null, &json!(1));
        // The change tells the dispatcher where rows wait: no scan is needed.
        served.deliver_known().await;
        assert_eq!(served.script.mails().len(), 3, "two refused, one sent");
        for (id, status) in [(&old, "SENT"), (&new, "FAILED")] {
            let (_, shown) = served.read(&format!("notifications/{id}")).await;
            assert_eq!(shown["notification"]["status"], status, "{shown}");
        }
        assert_eq!(served.dead("").await[0], json!(new));
    }
}
