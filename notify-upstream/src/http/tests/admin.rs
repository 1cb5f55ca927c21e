//! The routes of the admin listener.

mod content;

use postern_common::admin_api::{OPERATOR, protect};
use reqwest::Method;

use super::*;
use crate::delivery::pool::ProviderDescription;
use crate::housekeeping::ProviderPauses;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const UNKNOWN_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Returns the protected routes over the provider of the replica.
pub(super) fn routes(service: &Arc<ApiState>, pauses: ProviderPauses) -> Router {
    let description = ProviderDescription {
        name: "script".to_owned(),
        channel: crate::notification::Channel::Email,
        kind: "null",
        weight: 1,
        concurrency: 8,
        rate: None,
    };
    let parts = AdminParts {
        pauses,
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

    /// Reads as the operator `ada`.
    async fn read_as_operator(&self, path: &str) -> (u16, Value) {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str()), (OPERATOR, "ada")];
        self.call(Method::GET, path, &headers, None).await
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

/// All routes: the method, the path, and whether it requires an operator.
const ROUTES: [(Method, &str, bool); 18] = [
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
    (Method::POST, "providers/script/pause", true),
    (Method::POST, "providers/script/resume", true),
    (Method::GET, "notifications/x/preview", true),
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
