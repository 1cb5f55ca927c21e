//! Templates, suppression lists and what was sent.

use super::*;

#[tokio::test]
async fn templates_are_listed_and_previewed() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let (status, found) = served.read("templates").await;
    let templates = found["templates"].as_array().expect("templates");
    let welcome = templates
        .iter()
        .find(|template| template["name"] == "welcome");
    let welcome = welcome.expect("shipped");
    let facts = (status, &welcome["version"], &welcome["category"]);
    assert_eq!(facts, (200, &json!(1), &json!("welcome")), "{found}");
    let variant = json!({ "channel": "email", "locale": "de", "variables": ["name"] });
    let variants = welcome["variants"].as_array().expect("variants");
    assert!(variants.contains(&variant), "{found}");
    let body = json!({ "channel": "email", "locale": "de", "variables": { "name": "Ada <b>" } });
    let (status, preview) = served.change("templates/welcome/preview", &body).await;
    assert_eq!((status, &preview["errors"]), (200, &json!([])), "{preview}");
    assert_eq!(
        (&preview["version"], &preview["locale"]),
        (&json!(1), &json!("de"))
    );
    assert!(preview["subject"].is_string(), "{preview}");
    assert!(preview["text"].as_str().expect("a text").contains("Ada"));
    let html = preview["html"].as_str().unwrap_or_default();
    assert!(!html.contains("<b>"), "variables are escaped: {html}");
    let missing = json!({ "channel": "email" });
    let (status, preview) = served.change("templates/welcome/preview", &missing).await;
    let code = &preview["errors"][0]["code"];
    assert_eq!(
        (status, code),
        (200, &"missing_variable".into()),
        "{preview}"
    );
    assert_eq!(preview["errors"][0]["pointer"], "/variables/name");
    let email = json!({ "channel": "email" });
    for path in ["templates/none/preview", "templates/..%2Fwelcome/preview"] {
        let found = served.change(path, &email).await;
        assert_problem(&found, 404, "not_found", None);
    }
    for (body, pointer) in [
        (json!({ "channel": "fax" }), "/channel"),
        (json!({}), "/channel"),
        (json!({ "channel": "email", "variables": [] }), "/variables"),
        (json!({ "channel": "email", "locale": "?" }), "/locale"),
    ] {
        let found = served.change("templates/welcome/preview", &body).await;
        assert_problem(&found, 400, "invalid_request", Some(pointer));
    }
    served.shutdown.cancel();
}

/// Returns the number of entries on pages of one entry.
async fn entries_of_pages(served: &TestServer) -> usize {
    let (mut seen, mut cursor) = (0, String::new());
    for _ in 0..5 {
        let (_, page) = served.read(&format!("suppression?limit=1{cursor}")).await;
        seen += page["entries"].as_array().map_or(0, Vec::len);
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    seen
}

async fn assert_wrong_queries_are_refused(served: &TestServer) {
    for (query, parameter) in [
        ("hash=ada@example.com", "?hash"),
        ("cursor=1", "?cursor"),
        ("list=none", "?list"),
        ("channel=fax", "?channel"),
        ("limit=0", "?limit"),
        ("limit=1001", "?limit"),
        ("address=ada@example.com", "?address"),
    ] {
        let found = served.read(&format!("suppression?{query}")).await;
        assert_problem(&found, 400, "invalid_request", Some(parameter));
    }
}

#[tokio::test]
async fn suppressed_address_is_found_by_hash_and_removed() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let list = crate::delivery::suppression::SuppressionList::Suppressed;
        let row = |address: &str| crate::store::SuppressionRow {
            kind: list.kind(crate::notification::Channel::Email),
            address: crate::address::hash(address).to_vec(),
            category: String::new(),
            reason: "mailbox_unknown".to_owned(),
        };
        let rows = ["ada@example.com", "eve@example.com", "bob@example.com"].map(row);
        store.suppress(&rows).await.expect("stored");
        let phone = crate::store::SuppressionRow {
            kind: list.kind(crate::notification::Channel::Sms),
            ..row("+431234567")
        };
        store.suppress(&[phone]).await.expect("stored");
        for (filter, count) in [
            ("channel=sms", 1),
            ("list=unsubscribed", 0),
            ("reason=x", 0),
        ] {
            let (_, found) = served.read(&format!("suppression?{filter}")).await;
            let entries = found["entries"].as_array().map(Vec::len);
            assert_eq!(entries, Some(count), "{filter}: {found}");
        }
        let hash = hex::encode(crate::address::hash("ada@example.com"));
        let (status, found) = served.read(&format!("suppression?hash={hash}")).await;
        let entries = found["entries"].as_array().expect("entries");
        assert_eq!(
            (status, entries.len(), &entries[0]["addressHash"]),
            (200, 1, &hash.into()),
            "{found}"
        );
        let entry = &entries[0];
        let facts = [&entry["list"], &entry["channel"], &entry["reason"]];
        assert_eq!(facts, ["suppressed", "email", "mailbox_unknown"], "{found}");
        assert!(entry["at"].is_string(), "{found}");
        assert_eq!(
            entries_of_pages(&served).await,
            4,
            "each entry is on one page"
        );
        let removal = json!({ "id": entries[0]["id"] });
        let (log, _guard) = CapturedLog::start();
        let removed = served.change("suppression/remove", &removal).await;
        assert_eq!(removed, (200, json!({ "removed": 1 })));
        let id = entries[0]["id"].as_str().expect("an id");
        assert_logged(&log, "suppression.remove", id, &Value::Null, &json!(1));
        let (_, left) = served
            .read("suppression?list=suppressed&channel=email")
            .await;
        let left = left["entries"].as_array().expect("entries");
        assert!(left.iter().all(|entry| entry["id"] != id), "{left:?}");
        assert_eq!(left.len(), 2);
        let again = served.change("suppression/remove", &removal).await;
        assert_eq!(again, (200, json!({ "removed": 0 })));
        for id in ["", "1", "1.xyz", "99.00", "1.' OR 1=1"] {
            let found = served
                .change("suppression/remove", &json!({ "id": id }))
                .await;
            assert_problem(&found, 400, "invalid_request", Some("/id"));
        }
        assert_wrong_queries_are_refused(&served).await;
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn message_is_rendered_again_as_it_was_sent() {
    let (log, _guard) = CapturedLog::start();
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, preview) = served
            .read_as_operator(&format!("notifications/{id}/preview"))
            .await;
        assert_eq!(
            (status, &preview["channel"]),
            (200, &"email".into()),
            "{preview}"
        );
        assert_eq!(preview["isSameVersion"], true, "{preview}");
        let event = [
            "administrative action",
            "notification.read_message",
            "ada",
            &id,
        ];
        assert_eq!(log.with(&event), 1, "{}", log.text());
        let sent = served.script.mails().pop().expect("sent");
        let shown =
            [&preview["subject"], &preview["text"]].map(|text| text.as_str().unwrap_or_default());
        assert_eq!(shown, [sent.text[0].as_str(), sent.text[1].as_str()]);
        served
            .templates
            .store(Arc::new(crate::testing::templates_of(
                "other",
                &[("template.toml", "version = 1\n"), ("sms.en.txt", "x")],
            )));
        let (status, gone) = served
            .read_as_operator(&format!("notifications/{id}/preview"))
            .await;
        assert_eq!(
            (status, &gone["code"]),
            (404, &"not_found".into()),
            "{gone}"
        );
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn operator_sends_a_template_to_an_address() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let body =
            json!({ "channel": "email", "to": "eve@example.com", "variables": { "name": "Eve" } });
        let (log, _guard) = CapturedLog::start();
        let (status, sent) = served.change("templates/welcome/send", &body).await;
        let id = sent["notificationId"].as_str().expect("an id");
        assert_eq!((status, id.len()), (200, 36), "{sent}");
        assert_logged(&log, "template.send", "welcome", &Value::Null, &sent);
        served.deliver().await;
        assert_eq!(served.script.mails()[0].to, "eve@example.com");
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        let shown = &shown["notification"];
        let facts = [&shown["creator"], &shown["priority"], &shown["status"]];
        assert_eq!(facts, ["operator", "NORMAL", "SENT"], "{shown}");
        let (status, ..) = served.get(id, "operator", None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "a service of that name");
        let with = |name: &str, value: Value| {
            let mut body = body.clone();
            body[name] = value;
            body
        };
        let (_, urgent) = served
            .change(
                "templates/welcome/send",
                &with("priority", json!("CRITICAL")),
            )
            .await;
        let id = urgent["notificationId"].as_str().expect("an id");
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(shown["notification"]["priority"], "CRITICAL", "{shown}");
        let found = served
            .change("templates/welcome/send", &with("variables", json!({})))
            .await;
        assert_problem(&found, 422, "validation_failed", Some("/variables/name"));
        for (name, value) in [
            ("to", json!("+431234567")),
            ("to", Value::Null),
            ("channel", json!("fax")),
            ("priority", json!("SOON")),
        ] {
            let found = served
                .change("templates/welcome/send", &with(name, value))
                .await;
            let pointer = format!("/{name}");
            assert_problem(&found, 400, "invalid_request", Some(&pointer));
        }
        assert_eq!(log.with(&["administrative action"]), 2, "{}", log.text());
        served.shutdown.cancel();
    }
}
