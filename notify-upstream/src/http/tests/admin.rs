//! The routes of the admin listener.

use postern_common::admin_api::{OPERATOR, protect};
use reqwest::Method;

use super::*;
use crate::delivery::pool::{ProviderDescription, ProviderPool};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const UNKNOWN_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Returns the protected routes over the provider of the replica.
pub(super) fn routes(service: &Arc<ApiState>, pool: Arc<ProviderPool>) -> Router {
    let description = ProviderDescription {
        name: "script".to_owned(),
        channel: crate::notification::Channel::Email,
        kind: "null",
        weight: 1,
        concurrency: 8,
        rate: None,
    };
    let parts = AdminParts {
        pool,
        descriptions: [description].into(),
    };
    protect(Some(&Secret::from(TOKEN)), admin_routes(service, parts))
}

impl TestServer {
    /// Calls an admin route with these header fields.
    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> (u16, Value) {
        let url = format!("{}/admin/{path}", self.admin_url);
        let mut request = self.client.request(method, url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.expect("a response");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    async fn read(&self, path: &str) -> (u16, Value) {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        self.call(Method::GET, path, &headers, None).await
    }

    /// Makes a change as the operator `ada`.
    async fn change(&self, path: &str, body: &Value) -> (u16, Value) {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str()), (OPERATOR, "ada")];
        self.call(Method::POST, path, &headers, Some(body)).await
    }

    async fn accepted(&self, body: &Value) -> String {
        let (status, created) = self.post("/notifications", &[], body).await;
        assert_eq!(status, StatusCode::CREATED, "{created}");
        let id = created["notificationId"].as_str();
        id.expect("an id").to_owned()
    }

    /// Returns a notification that the provider has refused permanently.
    async fn dead_letter(&mut self) -> String {
        self.script.refuse(&["550 5.7.1"]);
        let id = self.accepted(&welcome()).await;
        self.deliver().await;
        id
    }
}

/// All routes: the method, the path, and whether it is a change.
const ROUTES: [(Method, &str, bool); 16] = [
    (Method::GET, "notifications", false),
    (Method::GET, "notifications/x", false),
    (Method::POST, "notifications/x/retry", true),
    (Method::POST, "notifications/x/cancel", true),
    (Method::POST, "notifications/x/replay", true),
    (Method::GET, "dead", false),
    (Method::POST, "dead/retry", true),
    (Method::POST, "dead/drop", true),
    (Method::GET, "queue", false),
    (Method::GET, "providers", false),
    (Method::GET, "templates", false),
    (Method::GET, "notifications/x/preview", false),
    (Method::POST, "templates/welcome/send", true),
    (Method::POST, "providers/script/test", true),
    (Method::GET, "suppression", false),
    (Method::POST, "suppression/remove", true),
];

#[tokio::test]
async fn admin_routes_require_the_token_and_changes_a_name() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let wrong = format!("Bearer {}", TOKEN.replace('0', "1"));
    let right = format!("Bearer {TOKEN}");
    let body = json!({ "selector": { "code": "x" } });
    for (method, path, is_change) in ROUTES {
        let body = is_change.then_some(&body);
        for headers in [
            &[(OPERATOR, "ada")][..],
            &[("authorization", wrong.as_str()), (OPERATOR, "ada")],
        ] {
            let (status, problem) = served.call(method.clone(), path, headers, body).await;
            let code = &problem["code"];
            assert_eq!(
                (status, code),
                (401, &"authentication_required".into()),
                "{path}"
            );
        }
        if is_change {
            let headers = [("authorization", right.as_str())];
            let (status, problem) = served.call(method, path, &headers, body).await;
            let code = &problem["code"];
            assert_eq!((status, code), (400, &"invalid_header".into()), "{path}");
        }
    }
    served.shutdown.cancel();
}

#[tokio::test]
async fn operator_lists_and_shows_notifications_of_all() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, page) = served.read("notifications?recipient=ada@example.com").await;
        let listed = &page["notifications"][0];
        assert_eq!(
            (status, &listed["notificationId"]),
            (200, &id.clone().into()),
            "{page}"
        );
        assert_eq!(listed["recipient"], json!({ "email": "ada@example.com" }));
        assert_eq!(listed["creator"], "service:auth");
        let (status, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(
            (status, &shown["notification"]["status"]),
            (200, &"SENT".into())
        );
        let events = shown["entries"].as_array().expect("entries");
        let names: Vec<_> = events
            .iter()
            .filter_map(|entry| entry["event"].as_str())
            .collect();
        assert_eq!(names, ["QUEUED", "ATTEMPTED", "SENT"], "{shown}");
        let cases = [
            ("notifications?status=X&nonsense=1", 400, "invalid_request"),
            ("notifications?cursor=AAAA", 400, "invalid_request"),
            ("notifications/%27%20OR%201=1", 404, "not_found"),
            (&format!("notifications/{UNKNOWN_ID}"), 404, "not_found"),
        ];
        for (path, expected, code) in cases {
            let (status, problem) = served.read(path).await;
            assert_eq!(
                (status, &problem["code"]),
                (expected, &code.into()),
                "{path}"
            );
        }
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn dead_letter_is_retried_once_and_delivered() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.dead_letter().await;
        let path = format!("notifications/{id}/retry");
        let (status, retried) = served.change(&path, &json!({})).await;
        assert_eq!(
            (status, &retried["status"]),
            (200, &"QUEUED".into()),
            "{retried}"
        );
        let (status, again) = served.change(&path, &json!({})).await;
        assert_eq!((status, &again["code"]), (422, &"validation_failed".into()));
        served.deliver().await;
        let (_, shown) = served.read(&format!("notifications/{id}")).await;
        assert_eq!(shown["notification"]["status"], "SENT", "{shown}");
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn replay_accepts_the_same_content_under_a_new_id() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, copy) = served
            .change(&format!("notifications/{id}/replay"), &json!({}))
            .await;
        assert_eq!(
            (status, &copy["replayOf"]),
            (200, &id.clone().into()),
            "{copy}"
        );
        assert_ne!(copy["notificationId"], id.as_str());
        served.deliver().await;
        let mails = served.script.mails();
        assert_eq!(mails.len(), 2);
        assert_eq!(
            (&mails[0].to, &mails[0].text),
            (&mails[1].to, &mails[1].text)
        );
        let copy = copy["notificationId"].as_str().expect("an id");
        // The creator of the original finds the copy.
        assert_eq!(served.get(copy, "auth", None).await.0, StatusCode::OK);
        let unknown = format!("notifications/{UNKNOWN_ID}/replay");
        assert_eq!(served.change(&unknown, &json!({})).await.0, 404);
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn operator_cancels_what_waits_and_nothing_else() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let mut scheduled = welcome();
        scheduled["sendAt"] = json!(START.plus(std::time::Duration::from_secs(3600)));
        let waiting = served.accepted(&scheduled).await;
        let (status, cancelled) = served
            .change(&format!("notifications/{waiting}/cancel"), &json!({}))
            .await;
        assert_eq!((status, &cancelled["status"]), (200, &"CANCELLED".into()));
        let sent = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, problem) = served
            .change(&format!("notifications/{sent}/cancel"), &json!({}))
            .await;
        assert_eq!((status, &problem["code"]), (422, &"not_cancellable".into()));
        served.shutdown.cancel();
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
        for query in [
            "channel=fax",
            "limit=0",
            "limit=1001",
            "code=",
            "x=1",
            "id=1",
        ] {
            assert_eq!(
                served.read(&format!("dead?{query}")).await.0,
                400,
                "{query}"
            );
        }
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn dead_letters_are_dropped_by_selector_only() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        served.dead_letter().await;
        served.dead_letter().await;
        for body in [
            json!({}),
            json!({ "selector": {} }),
            json!({ "selector": { "all": true } }),
        ] {
            let (status, problem) = served.change("dead/drop", &body).await;
            assert_eq!(status, 400, "{body}: {problem}");
        }
        let selector = json!({ "provider": "script", "channel": "email" });
        let dry = json!({ "selector": selector, "dryRun": true });
        // A preview changes nothing, and names no person.
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        let (status, preview) = served
            .call(Method::POST, "dead/drop", &headers, Some(&dry))
            .await;
        assert_eq!(
            (status, &preview["count"], &preview["dryRun"]),
            (200, &2.into(), &true.into())
        );
        let other = json!({ "selector": { "provider": "other" } });
        assert_eq!(served.change("dead/drop", &other).await.1["count"], 0);
        let (log, _guard) = postern_common::testing::CapturedLog::start();
        let (status, dropped) = served
            .change("dead/drop", &json!({ "selector": selector }))
            .await;
        assert_eq!((status, &dropped["count"]), (200, &2.into()), "{dropped}");
        assert!(log.with(&["administrative action", "dead.drop", "ada"]) == 1);
        assert_eq!(served.read("dead").await.1["deadLetters"], json!([]));
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn queue_shows_depth_and_age_by_priority() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let mut low = welcome();
        low["priority"] = "LOW".into();
        served.accepted(&low).await;
        served.clock.advance(std::time::Duration::from_secs(90));
        let (status, queue) = served.read("queue").await;
        let queues = queue["queues"].as_array().expect("queues");
        assert_eq!((status, queues.len()), (200, 12), "{queue}");
        let waiting: Vec<_> = queues.iter().filter(|queue| queue["depth"] != 0).collect();
        assert_eq!(waiting.len(), 1, "{queue}");
        assert_eq!(
            (&waiting[0]["channel"], &waiting[0]["priority"]),
            (&"email".into(), &"LOW".into())
        );
        assert_eq!(waiting[0]["oldestAgeSeconds"], 90.0);
        served.deliver().await;
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn providers_show_their_calls_and_last_codes() {
    let (store, _database) = stores().await.swap_remove(0);
    let mut served = served(&store).await;
    served.dead_letter().await;
    served.accepted(&welcome()).await;
    served.deliver().await;
    let (status, found) = served.read("providers").await;
    let provider = &found["providers"][0];
    assert_eq!(
        (status, &provider["name"], &provider["breaker"]),
        (200, &"script".into(), &"closed".into())
    );
    assert_eq!(
        (&provider["calls"]["ok"], &provider["calls"]["refused"]),
        (&1.into(), &1.into()),
        "{found}"
    );
    let replies = &provider["lastReplies"];
    assert_eq!(
        (&replies[0]["outcome"], &replies[1]["outcome"]),
        (&"ok".into(), &"refused".into())
    );
    assert!(replies[1]["code"].is_string(), "{found}");
    served.shutdown.cancel();
}

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
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let id = served.accepted(&welcome()).await;
        served.deliver().await;
        let (status, preview) = served.read(&format!("notifications/{id}/preview")).await;
        assert_eq!(
            (status, &preview["channel"]),
            (200, &"email".into()),
            "{preview}"
        );
        assert_eq!(preview["isSameVersion"], true, "{preview}");
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
        let (status, gone) = served.read(&format!("notifications/{id}/preview")).await;
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
