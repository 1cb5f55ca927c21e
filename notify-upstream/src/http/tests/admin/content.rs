//! Templates, suppression lists and what was sent.

use super::*;
use crate::notification::Channel;
use postern_core::testing::assert_members;

#[tokio::test]
async fn templates_are_listed_and_previewed() {
    let (served, _database) = servers().await.remove(0);
    let (status, found) = served.read("templates").await;
    let templates = found["templates"].as_array().expect("templates");
    let mut templates = templates.iter();
    let welcome = templates.find(|template| template["name"] == "welcome");
    let welcome = welcome.expect("shipped");
    let facts = (status, &welcome["version"], &welcome["category"]);
    assert_eq!(facts, (200, &json!(1), &json!("welcome")), "{found}");
    let variant = json!({ "channel": "email", "locale": "de", "variables": ["name"] });
    let variants = welcome["variants"].as_array().expect("variants");
    assert!(variants.contains(&variant), "{found}");
    let body = json!({ "channel": "email", "locale": "de", "variables": { "name": "Ada <b>" } });
    let (status, preview) = served.change("templates/welcome/preview", &body).await;
    assert_eq!((status, &preview["errors"]), (200, &json!([])), "{preview}");
    assert_members(&preview, &json!({ "version": 1, "locale": "de" }));
    assert!(preview["subject"].is_string(), "{preview}");
    assert!(preview["text"].as_str().expect("a text").contains("Ada"));
    let html = preview["html"].as_str().unwrap_or_default();
    assert!(!html.contains("<b>"), "variables are escaped: {html}");
    let missing = json!({ "channel": "email" });
    let (status, preview) = served.change("templates/welcome/preview", &missing).await;
    assert_eq!(status, 200);
    let expected = json!({ "code": "missing_variable", "pointer": "/variables/name" });
    assert_members(&preview["errors"][0], &expected);
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
        served
            .assert_refused("templates/welcome/preview", &body, pointer)
            .await;
    }
}

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

const WRONG_QUERIES: [(&str, &str); 6] = [
    ("hash=ada@example.com", "?hash"),
    ("cursor=1", "?cursor"),
    ("channel=sms", "?channel"),
    ("limit=0", "?limit"),
    ("limit=1001", "?limit"),
    ("address=ada@example.com", "?address"),
];

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
        assert_eq!((status, entries.len()), (200, 1), "{found}");
        let expected = json!({ "addressHash": hash, "list": "suppressed", "channel": "email",
            "reason": "mailbox_unknown" });
        assert_members(&entries[0], &expected);
        assert!(entries[0]["at"].is_string(), "{found}");
        let count = entries_of_pages(&served).await;
        assert_eq!(count, 4, "each entry is on one page");
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
            let removal = json!({ "id": id });
            let path = "suppression/remove";
            served.assert_refused(path, &removal, "/id").await;
        }
        let path = "suppression";
        served.assert_queries_refused(path, &WRONG_QUERIES).await;
    }
}

#[tokio::test]
async fn message_is_rendered_again_as_it_was_sent() {
    let (log, _guard) = CapturedLog::start();
    for (mut served, _database) in servers().await {
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let path = format!("notifications/{id}/preview");
        let (status, preview) = served.call(Method::GET, &path, &AS_ADA, None).await;
        let action = "notification.read_message";
        let event = ["administrative action", action, "ada", &id];
        assert_eq!(log.with(&event), 1, "{}", log.text());
        let [subject, text] = served.script.mails().pop().expect("sent").text;
        assert_eq!(status, 200, "{preview}");
        let expected = json!({ "channel": "email", "isSameVersion": true, "subject": subject,
            "text": text });
        assert_members(&preview, &expected);
        let other = [("template.toml", "version = 1\n"), ("sms.en.txt", "x")];
        let other = crate::testing::templates_of("other", &other);
        served.templates.store(Arc::new(other));
        let gone = served.call(Method::GET, &path, &AS_ADA, None).await;
        assert_problem(&gone, 404, "not_found", None);
    }
}
