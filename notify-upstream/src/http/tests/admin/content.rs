//! Templates, suppression lists, providers and what was sent.

use postern_common::testing::CapturedLog;

use super::*;
use crate::store::ProviderPause;

#[tokio::test]
async fn templates_are_listed_and_previewed() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let (status, found) = served.read("templates").await;
    let templates = found["templates"].as_array().expect("templates");
    let welcome = templates
        .iter()
        .find(|template| template["name"] == "welcome");
    let variants = &welcome.expect("shipped")["variants"];
    assert_eq!(
        (status, variants[0]["channel"].is_string()),
        (200, true),
        "{found}"
    );
    let body = json!({ "channel": "email", "locale": "de", "variables": { "name": "Ada <b>" } });
    let (status, preview) = served.change("templates/welcome/preview", &body).await;
    assert_eq!((status, &preview["errors"]), (200, &json!([])), "{preview}");
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
    let cases = [
        ("templates/none/preview", json!({ "channel": "email" }), 404),
        (
            "templates/..%2Fwelcome/preview",
            json!({ "channel": "email" }),
            404,
        ),
        (
            "templates/welcome/preview",
            json!({ "channel": "fax" }),
            400,
        ),
        (
            "templates/welcome/preview",
            json!({ "channel": "email", "variables": [] }),
            400,
        ),
    ];
    for (path, body, expected) in cases {
        let (status, problem) = served.change(path, &body).await;
        let is_expected = status == expected || (expected == 400 && status == 422);
        assert!(is_expected, "{path} {body}: {status} {problem}");
    }
    served.shutdown.cancel();
}

#[tokio::test]
async fn suppressed_address_is_found_by_hash_and_removed() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let list = crate::delivery::suppression::SuppressionList::Suppressed;
        let row = |address: &str| crate::store::SuppressionRow {
            kind: list.kind(crate::notification::Channel::Email),
            address: crate::address::hash(address).to_vec(),
            reason: "mailbox_unknown".to_owned(),
        };
        let rows = ["ada@example.com", "eve@example.com", "bob@example.com"].map(row);
        store.suppress(&rows, START).await.expect("stored");
        let hash = hex::encode(crate::address::hash("ada@example.com"));
        let (status, found) = served.read(&format!("suppression?hash={hash}")).await;
        let entries = found["entries"].as_array().expect("entries");
        assert_eq!(
            (status, entries.len(), &entries[0]["addressHash"]),
            (200, 1, &hash.into()),
            "{found}"
        );
        let (mut seen, mut cursor) = (0, String::new());
        for _ in 0..4 {
            let (_, page) = served.read(&format!("suppression?limit=1{cursor}")).await;
            seen += page["entries"].as_array().map_or(0, Vec::len);
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, 3, "each entry is on one page");
        let (status, removed) = served
            .change("suppression/remove", &json!({ "id": entries[0]["id"] }))
            .await;
        assert_eq!((status, &removed["removed"]), (200, &1.into()), "{removed}");
        let (_, left) = served
            .read("suppression?list=suppressed&channel=email")
            .await;
        assert_eq!(left["entries"].as_array().map(Vec::len), Some(2), "{left}");
        for id in ["", "1", "1.xyz", "99.00", "1.' OR 1=1"] {
            let (status, _) = served
                .change("suppression/remove", &json!({ "id": id }))
                .await;
            assert!(matches!(status, 400 | 422), "{id}: {status}");
        }
        for query in [
            "hash=ada@example.com",
            "cursor=1",
            "list=none",
            "limit=1001",
        ] {
            assert_eq!(
                served.read(&format!("suppression?{query}")).await.0,
                400,
                "{query}"
            );
        }
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
        let (status, sent) = served.change("templates/welcome/send", &body).await;
        assert_eq!(
            (status, sent["notificationId"].as_str().map(str::len)),
            (200, Some(36)),
            "{sent}"
        );
        served.deliver().await;
        assert_eq!(served.script.mails()[0].to, "eve@example.com");
        let without = json!({ "channel": "email", "to": "eve@example.com" });
        assert_eq!(
            served.change("templates/welcome/send", &without).await.0,
            422
        );
        let phone =
            json!({ "channel": "email", "to": "+431234567", "variables": { "name": "Eve" } });
        assert_eq!(served.change("templates/welcome/send", &phone).await.0, 400);
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn provider_test_returns_the_reply_of_the_provider() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let to = json!({ "to": "ada@example.com" });
    let (status, reply) = served.change("providers/script/test", &to).await;
    assert_eq!((status, &reply["accepted"]), (200, &true.into()), "{reply}");
    assert_eq!(served.script.mails()[0].to, "ada@example.com");
    served.script.refuse(&["550 5.7.1"]);
    let (status, reply) = served.change("providers/script/test", &to).await;
    assert_eq!(
        (status, &reply["accepted"]),
        (200, &false.into()),
        "{reply}"
    );
    assert!(reply["code"].is_string(), "{reply}");
    assert_eq!(served.change("providers/other/test", &to).await.0, 404);
    let actor = json!({ "to": { "actorId": "ada" } });
    assert_eq!(served.change("providers/script/test", &actor).await.0, 400);
    served.shutdown.cancel();
}

#[tokio::test]
async fn paused_provider_is_not_called_until_it_is_resumed() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let path = |action: &str| format!("providers/script/{action}");
        let reason = json!({ "reason": "wrong sender" });
        let (status, body) = served.change(&path("pause"), &reason).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["paused"]["reason"], "wrong sender", "{body}");
        // A second pause changes nothing.
        let other = json!({ "reason": "other" });
        let (status, body) = served.change(&path("pause"), &other).await;
        let first = (200, &"wrong sender".into());
        assert_eq!((status, &body["paused"]["reason"]), first, "{body}");
        let stored = store.paused_providers().await.expect("read");
        let stored: Vec<_> = stored
            .iter()
            .map(|pause| (&*pause.provider, &*pause.operator, pause.at))
            .collect();
        assert_eq!(stored, [("script", "ada", START)]);
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        assert!(served.script.mails().is_empty(), "not called");
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        let shown = &shown["notification"];
        let (state, reason) = (&shown["status"], &shown["waitReason"]);
        assert_eq!(
            (state, reason),
            (&"QUEUED".into(), &"PROVIDER_PAUSED".into())
        );
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
        served.deliver().await;
        let sent = served.script.mails().len();
        assert_eq!(sent, 2, "the test, and the message after the pause");
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn invalid_pauses_are_refused_and_stale_ones_resumed() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    for (path, body, expected) in [
        ("providers/other/pause", json!({}), 404),
        ("providers/other/resume", json!({}), 404),
        ("providers/script/pause", json!({ "reason": "" }), 400),
        ("providers/script/pause", json!({ "reason": 1 }), 400),
        (
            "providers/script/pause",
            json!({ "reason": "x".repeat(201) }),
            400,
        ),
        (
            "providers/script/pause",
            json!({ "reason": "a\u{1b}[2J" }),
            400,
        ),
        ("providers/script/pause", json!({ "until": "2026" }), 400),
        ("providers/script/pause", json!([]), 400),
    ] {
        let (status, problem) = served.change(path, &body).await;
        assert_eq!(status, expected, "{path} {body}: {problem}");
    }
    assert!(store.paused_providers().await.expect("read").is_empty());
    // The provider was renamed during its pause.
    let pause = ProviderPause {
        provider: "other".to_owned(),
        operator: "ada".to_owned(),
        at: START,
        reason: None,
    };
    assert!(store.pause_provider(&pause).await.expect("stored"));
    assert_eq!(
        served.change("providers/other/resume", &json!({})).await.0,
        200
    );
    assert!(store.paused_providers().await.expect("read").is_empty());
    served.shutdown.cancel();
}
