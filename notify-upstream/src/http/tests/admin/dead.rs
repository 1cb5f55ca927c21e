//! Dead letters: list, and changes of a selection.

use std::time::Duration;

use super::*;

async fn assert_wrong_selectors_are_refused(served: &TestServer) {
    for (query, parameter) in [
        ("channel=fax", "?channel"),
        ("limit=0", "?limit"),
        ("limit=1001", "?limit"),
        ("code=", "?code"),
        ("x=1", "?x"),
        ("before=now", "?before"),
        ("since=now", "?since"),
        ("template=..", "?template"),
    ] {
        let found = served.read(&format!("dead?{query}")).await;
        assert_problem(&found, 400, "invalid_request", Some(parameter));
    }
}

#[tokio::test]
async fn dead_letters_are_selected_by_every_property() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.dead_letter().await;
        let (_, all) = served.read("dead").await;
        let letter = &all["deadLetters"][0];
        assert_eq!(
            (&letter["notificationId"], &letter["provider"]),
            (&id.clone().into(), &"script".into())
        );
        let code = letter["code"].as_str().expect("a code").to_owned();
        assert_eq!(code, "message_refused_by_policy");
        let expected = json!({
            "notificationId": id, "at": START, "channel": "email", "priority": "NORMAL", "attempts": 1,
            "code": code, "recipientKind": "email", "template": "welcome", "provider": "script",
            "lastReply": "550 5.7.1",
        });
        assert_eq!(*letter, expected);
        let matching = [
            format!("code={code}"),
            "provider=script&template=welcome&channel=email".to_owned(),
        ];
        for query in &matching {
            let (status, found) = served.read(&format!("dead?{query}")).await;
            assert_eq!(
                (status, found["deadLetters"].as_array().map(Vec::len)),
                (200, Some(1)),
                "{query}"
            );
        }
        for query in [
            "code=%25",
            "provider=other",
            "template=other",
            "channel=sms",
            "before=2000-01-01T00:00:00Z",
            "since=2100-01-01T00:00:00Z",
        ] {
            let (status, found) = served.read(&format!("dead?{query}")).await;
            assert_eq!(
                (status, found["deadLetters"].as_array().map(Vec::len)),
                (200, Some(0)),
                "{query}"
            );
        }
        assert_wrong_selectors_are_refused(&served).await;
        let other = served.dead_letter().await;
        let (_, first) = served.read("dead?limit=1").await;
        let page = (
            &first["deadLetters"][0]["notificationId"],
            &first["isTruncated"],
        );
        assert_eq!(page, (&json!(id), &json!(true)), "the oldest: {first}");
        assert_eq!(first["deadLetters"].as_array().map(Vec::len), Some(1));
        let (_, all) = served.read("dead").await;
        assert_eq!(all["deadLetters"][1]["notificationId"], json!(other));
        assert_eq!(all["isTruncated"], false);
    }
}

#[tokio::test]
async fn change_of_dead_letters_needs_a_valid_selector() {
    let (store, _database) = stores().await.swap_remove(0);
    let mut served = served(&store).await;
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
        let found = served.change(path, &body).await;
        assert_eq!(found.1["errors"][0]["pointer"], pointer, "{path} {body}");
        assert_problem(&found, 400, "invalid_request", Some(pointer));
    }
    let found = served.change(path, &json!({})).await;
    assert_problem(&found, 400, "invalid_request", Some("/selector"));
    let body = json!({ "selector": { "code": "x" }, "dryRun": 1 });
    let found = served.change(path, &body).await;
    assert_problem(&found, 400, "invalid_request", Some("/dryRun"));
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
    let (_, letters) = served.read("dead").await;
    assert_eq!(letters["deadLetters"].as_array().map(Vec::len), Some(1));
}

/// The target of a change of the dead letters of a provider and a channel.
const SELECTED: &str = r#"{"before":null,"channel":"email","code":null,"provider":"script","since":null,"template":null}"#;

#[tokio::test]
async fn preview_of_a_retry_changes_nothing_and_names_no_person() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        served.dead_letter().await;
        served.dead_letter().await;
        let selector = json!({ "provider": "script", "channel": "email" });
        let dry = json!({ "selector": selector, "dryRun": true });
        let (log, _guard) = CapturedLog::start();
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        let preview = json!({ "count": 2, "dryRun": true, "isTruncated": false });
        let found = served
            .call(Method::POST, "dead/retry", &headers, Some(&dry))
            .await;
        assert_eq!(found, (200, preview));
        let other = json!({ "selector": { "provider": "other" } });
        assert_eq!(served.change("dead/retry", &other).await.1["count"], 0);
        let (_, all) = served.read("dead").await;
        assert_eq!(all["deadLetters"].as_array().map(Vec::len), Some(2));
        let selected = json!({ "selector": selector });
        let retried = json!({ "count": 2, "dryRun": false, "isTruncated": false });
        assert_eq!(served.change("dead/retry", &selected).await, (200, retried));
        assert_logged(&log, "dead.retry", SELECTED, &Value::Null, &json!(2));
        assert_eq!(served.read("dead").await.1["deadLetters"], json!([]));
    }
}

#[tokio::test]
async fn selected_dead_letters_are_queued_and_delivered() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let old = served.dead_letter().await;
        served.clock.advance(Duration::from_secs(1));
        let middle = served.clock.now();
        served.clock.advance(Duration::from_secs(1));
        let new = served.dead_letter().await;
        let none = json!({ "selector": { "since": middle, "before": middle }, "dryRun": true });
        assert_eq!(served.change("dead/retry", &none).await.1["count"], 0);
        let (log, _guard) = CapturedLog::start();
        let (_, later) = served.read(&format!("dead?since={middle}")).await;
        assert_eq!(later["deadLetters"].as_array().map(Vec::len), Some(1));
        assert_eq!(later["deadLetters"][0]["notificationId"], json!(new));
        let body = json!({ "selector": { "before": middle } });
        let found = served.change("dead/retry", &body).await;
        let queued = json!({ "count": 1, "dryRun": false, "isTruncated": false });
        assert_eq!(found, (200, queued));
        let target = json!({ "before": middle, "channel": null, "code": null, "provider": null, "since": null, "template": null });
        assert_logged(
            &log,
            "dead.retry",
            &target.to_string(),
            &Value::Null,
            &json!(1),
        );
        // The change tells the dispatcher where rows wait: no scan is needed.
        served.deliver_known().await;
        assert_eq!(served.script.mails().len(), 3, "two refused, one sent");
        for (id, status) in [(&old, "SENT"), (&new, "FAILED")] {
            let (_, shown) = served.read(&format!("notifications/{id}")).await;
            assert_eq!(shown["notification"]["status"], status, "{shown}");
        }
        let (_, left) = served.read("dead").await;
        assert_eq!(left["deadLetters"][0]["notificationId"], json!(new));
    }
}
