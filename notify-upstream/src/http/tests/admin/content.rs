//! Templates, suppression lists and what was sent.

use super::*;
use crate::notification::Channel;

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
        ("channel=sms", "?channel"),
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
        for (channel, address) in [
            (Channel::Email, "ada@example.com"),
            (Channel::Email, "eve@example.com"),
            (Channel::Email, "bob@example.com"),
            (Channel::Sms, "+431234567"),
        ] {
            let (kind, hash) = (list.kind(channel), crate::address::hash(address));
            let added = store.suppress(kind, &hash, "", "mailbox_unknown").await;
            added.expect("stored");
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
        let (_, left) = served.read("suppression").await;
        let left = left["entries"].as_array().expect("entries");
        assert!(left.iter().all(|entry| entry["id"] != id), "{left:?}");
        assert_eq!(left.len(), 3);
        let again = served.change("suppression/remove", &removal).await;
        assert_eq!(again, (200, json!({ "removed": 0 })));
        for id in ["", "1", "1.xyz", "99.00", "1.' OR 1=1"] {
            let found = served
                .change("suppression/remove", &json!({ "id": id }))
                .await;
            assert_problem(&found, 400, "invalid_request", Some("/id"));
        }
        assert_wrong_queries_are_refused(&served).await;
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
    }
}
