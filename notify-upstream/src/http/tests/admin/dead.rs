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
        ("id=1", "?id"),
        ("since=1h", "?since"),
        ("until=now", "?until"),
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
            format!("id={id}"),
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
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn change_of_dead_letters_needs_a_valid_selector() {
    let (store, _database) = stores().await.swap_remove(0);
    let mut served = served(&store).await;
    served.dead_letter().await;
    let (log, _guard) = CapturedLog::start();
    for path in ["dead/retry", "dead/drop"] {
        for (selector, pointer) in [
            (json!({}), "/selector"),
            (json!({ "code": "x", "all": true }), "/selector/all"),
            (json!({ "code": "" }), "/selector/code"),
            (json!({ "provider": "a b" }), "/selector/provider"),
            (json!({ "template": "a b" }), "/selector/template"),
            (json!({ "channel": "fax" }), "/selector/channel"),
            (json!({ "before": "1h" }), "/selector/before"),
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
    }
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
    let (_, letters) = served.read("dead").await;
    assert_eq!(letters["deadLetters"].as_array().map(Vec::len), Some(1));
    served.shutdown.cancel();
}

/// The target of a change of the dead letters of a provider and a channel.
const SELECTED: &str =
    r#"{"before":null,"channel":"email","code":null,"provider":"script","template":null}"#;

#[tokio::test]
async fn dead_letters_are_dropped_by_selector_only() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.dead_letter().await;
        served.dead_letter().await;
        let selector = json!({ "provider": "script", "channel": "email" });
        let dry = json!({ "selector": selector, "dryRun": true });
        let (log, _guard) = CapturedLog::start();
        // A preview changes nothing, and names no person.
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        let preview = json!({ "count": 2, "dryRun": true, "isTruncated": false });
        for path in ["dead/drop", "dead/retry"] {
            let found = served.call(Method::POST, path, &headers, Some(&dry)).await;
            assert_eq!(found, (200, preview.clone()), "{path}");
        }
        assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
        let other = json!({ "selector": { "provider": "other" } });
        assert_eq!(served.change("dead/drop", &other).await.1["count"], 0);
        let (_, all) = served.read("dead").await;
        assert_eq!(all["deadLetters"].as_array().map(Vec::len), Some(2));
        let found = served
            .change("dead/drop", &json!({ "selector": selector }))
            .await;
        let dropped = json!({ "count": 2, "dryRun": false, "isTruncated": false });
        assert_eq!(found, (200, dropped));
        assert_logged(&log, "dead.drop", SELECTED, &Value::Null, &json!(2));
        assert_eq!(served.read("dead").await.1["deadLetters"], json!([]));
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(
            shown["notification"]["status"], "FAILED",
            "its history stays"
        );
        let path = format!("notifications/{id}/retry");
        let found = served.change(&path, &json!({})).await;
        assert_problem(&found, 422, "validation_failed", None);
        served.shutdown.cancel();
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
        let (log, _guard) = CapturedLog::start();
        let body = json!({ "selector": { "before": middle } });
        let found = served.change("dead/retry", &body).await;
        let queued = json!({ "count": 1, "dryRun": false, "isTruncated": false });
        assert_eq!(found, (200, queued));
        let target = json!({ "before": middle, "channel": null, "code": null, "provider": null, "template": null });
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
        served.shutdown.cancel();
    }
}
