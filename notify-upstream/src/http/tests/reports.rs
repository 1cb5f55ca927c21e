//! Effects and limits of delivery reports and unsubscriptions.

use aws_lc_rs::hmac;
use postern_core::testing::CapturedLog;
use prometheus::{Encoder, TextEncoder};
use reqwest::Response;

use super::*;
use crate::address::hash;
use crate::delivery::mail_token::TokenPurpose;
use crate::delivery::suppression::SuppressionList;
use crate::notification::{Channel, NotificationId};
use crate::testing::{execute, welcome_with};

/// The signature member of a Mailgun webhook.
struct Signature(Value);

fn mailgun(token: &str) -> Signature {
    let timestamp = START.unix_seconds().to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"mg-key");
    let tag = hmac::sign(&key, format!("{timestamp}{token}").as_bytes());
    let tag = hex::encode(tag);
    Signature(json!({"timestamp": timestamp, "token": token, "signature": tag}))
}

fn bounce(signature: &Signature, event: &str, id: &str, address: &str) -> Value {
    json!({"signature": signature.0, "event-data": {
        "event": "failed", "severity": "permanent", "reason": "bounce", "id": event, "recipient": address,
        "timestamp": 1_763_600_000.5,
        "delivery-status": {"code": 550, "message": "5.1.1 User unknown"}, "message": {"headers": {"message-id": format!("{id}@mail.example")}}
    }})
}

impl TestServer {
    async fn post_webhook(&self, provider: &str, body: String) -> Response {
        self.post_form(&format!("webhooks/{provider}"), body).await
    }

    async fn post_form(&self, path: &str, body: String) -> Response {
        let request = self.client.post(format!("{}/{path}", self.url));
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
            .send()
            .await
            .expect("a response")
    }

    async fn send_to(&mut self, address: &str) -> String {
        let mut body = welcome();
        body["recipient"] = json!({"email": address});
        let (status, created) = self.post("/notifications", &[], &body).await;
        assert_eq!(status, StatusCode::CREATED);
        self.deliver().await;
        created["notificationId"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    async fn status_of(&self, id: &str) -> (Value, Value) {
        let view = self.get(id, "auth", None).await.2;
        (view["status"].clone(), view["reason"].clone())
    }
}

#[tokio::test]
async fn mailgun_token_is_bound_to_the_first_body() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let (mine, other) = (
            served.send_to("ada@example.com").await,
            served.send_to("bob@example.com").await,
        );
        let signature = mailgun("t1");
        let first = bounce(&signature, "e1", &mine, "ada@example.com").to_string();
        let replayed = bounce(&signature, "e2", &other, "bob@example.com").to_string();
        for _ in 0..2 {
            assert_eq!(
                served
                    .post_webhook("mailgun", first.clone())
                    .await
                    .status()
                    .as_u16(),
                204
            );
        }
        let refused = served.post_webhook("mailgun", replayed).await;
        assert_eq!(refused.status().as_u16(), 401);
        assert_eq!(
            refused.json::<Value>().await.expect("JSON")["code"],
            "invalid_webhook_signature"
        );
        assert_eq!(
            served.status_of(&mine).await,
            ("FAILED".into(), "BOUNCED".into())
        );
        assert_eq!(served.status_of(&other).await.0, "SENT");
        // Moving characters between timestamp and token leaves the signature valid and yields the
        // same token.
        let mut shifted = bounce(&signature, "e3", &other, "bob@example.com");
        let whole = format!("{}t1", START.unix_seconds());
        shifted["signature"]["timestamp"] = whole[..9].into();
        shifted["signature"]["token"] = whole[9..].into();
        assert_eq!(
            served
                .post_webhook("mailgun", shifted.to_string())
                .await
                .status()
                .as_u16(),
            401
        );
        let next = bounce(&mailgun("t2"), "e4", &other, "bob@example.com").to_string();
        assert_eq!(
            served.post_webhook("mailgun", next).await.status().as_u16(),
            204
        );
        assert_eq!(served.status_of(&other).await.0, "FAILED");
    }
}

#[tokio::test]
async fn report_suppresses_only_the_address_of_its_notification() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let mine = served.send_to("ada@example.com").await;
        let stranger = bounce(&mailgun("t1"), "e1", &mine, "victim@example.com").to_string();
        assert_eq!(
            served
                .post_webhook("mailgun", stranger)
                .await
                .status()
                .as_u16(),
            204
        );
        let to_victim = served.send_to("victim@example.com").await;
        assert_eq!(served.status_of(&to_victim).await.0, "SENT");
        let again = served.send_to("ada@example.com").await;
        assert_eq!(
            served.status_of(&again).await.0,
            "SENT",
            "no report names this address"
        );
        let own = bounce(&mailgun("t2"), "e2", &mine, "Ada@Example.com").to_string();
        assert_eq!(
            served.post_webhook("mailgun", own).await.status().as_u16(),
            204
        );
        let kind = SuppressionList::Suppressed.kind(Channel::Email);
        let stored = store
            .suppressed_kind([kind, 8], &hash("ada@example.com"), None)
            .await;
        assert_eq!(stored.expect("no error"), Some(kind), "before the response");
        let silenced = served.send_to("ada@example.com").await;
        assert_eq!(
            served.status_of(&silenced).await,
            ("FAILED".into(), "ADDRESS_SUPPRESSED".into())
        );
    }
}

/// Returns the query of the link in a mail.
fn link(purpose: TokenPurpose, id: &str, address: &str) -> String {
    let id = NotificationId::parse(id).expect("an id");
    let token = mail_tokens().issue(purpose, id, &hash(address));
    format!("unsubscriptions?token={token}")
}

#[tokio::test]
async fn one_click_unsubscribes_from_the_category() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let category = |settings: &str| Arc::new(welcome_with(settings));
        served.templates.store(category("category = 'news'"));
        let id = served.send_to("ada@example.com").await;
        let click = "List-Unsubscribe=One-Click".to_owned();
        let path = link(TokenPurpose::Unsubscribe, &id, "ada@example.com");
        let wrong_purpose = link(TokenPurpose::DeliveryReport, &id, "ada@example.com");
        let other = link(TokenPurpose::Unsubscribe, &id, "bob@example.com");
        for (path, body, status) in [
            (path.as_str(), String::new(), 400),
            ("unsubscriptions", click.clone(), 401),
            (&format!("unsubscriptions?id={id}"), click.clone(), 401),
            (&format!("unsubscriptions?token={id}"), click.clone(), 401),
            (&wrong_purpose, click.clone(), 401),
            (&other, click.clone(), 401),
            (&format!("{path}&token=x"), click.clone(), 401),
            (path.as_str(), click.clone(), 204),
            (path.as_str(), click, 204),
        ] {
            let answer = served.post_form(path, body).await;
            assert_eq!(answer.status().as_u16(), status, "{path}");
        }
        for (settings, expected) in [
            ("category = 'news'", "FAILED"),
            ("category = 'jobs'", "SENT"),
            ("", "SENT"),
            ("transactional = true", "SENT"),
        ] {
            served.templates.store(category(settings));
            let sent = served.send_to("ada@example.com").await;
            assert_eq!(served.status_of(&sent).await.0, expected, "{settings}");
        }
        served.templates.store(category("transactional = true"));
        let needed = served.send_to("ada@example.com").await;
        let path = link(TokenPurpose::Unsubscribe, &needed, "ada@example.com");
        let answer = served.post_form(&path, "List-Unsubscribe=One-Click".to_owned());
        assert_eq!(answer.await.status().as_u16(), 401, "no category");
        served.templates.store(category("category = 'news'"));
        let bobs = served.send_to("bob@example.com").await;
        assert_eq!(served.status_of(&bobs).await.0, "SENT");
    }
}

#[tokio::test]
async fn opened_link_is_a_page_and_changes_nothing() {
    let (store, _database) = stores().await.remove(0);
    let mut served = served(&store).await;
    let id = served.send_to("ada@example.com").await;
    let path = link(TokenPurpose::Unsubscribe, &id, "ada@example.com");
    let url = format!("{}/{path}", served.url);
    let page = served.client.get(&url).send().await.expect("a response");
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()["cache-control"], "no-store");
    assert_eq!(page.headers()["referrer-policy"], "no-referrer");
    let text = page.text().await.expect("a text");
    assert!(
        text.contains("<b>welcome</b>") && text.contains("<button"),
        "{text}"
    );
    let foreign = link(TokenPurpose::Unsubscribe, &id, "bob@example.com");
    let answer = served
        .client
        .get(format!("{}/{foreign}", served.url))
        .send();
    assert_eq!(answer.await.expect("a response").status(), 401);
    let again = served.send_to("ada@example.com").await;
    assert_eq!(served.status_of(&again).await.0, "SENT");
    let form = [("List-Unsubscribe", "One-Click")];
    let request = served
        .client
        .post(&url)
        .header("accept", "text/html,*/*;q=0.8");
    let done = request.form(&form).send().await.expect("a response");
    assert_eq!(done.status(), 200);
    assert!(!done.text().await.expect("a text").contains("<button"));
    let unwanted = served.send_to("ada@example.com").await;
    assert_eq!(
        served.status_of(&unwanted).await,
        ("FAILED".into(), "RECIPIENT_UNSUBSCRIBED".into())
    );
}

#[tokio::test]
async fn complaint_unsubscribes_from_the_category_only() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        for (number, (name, settings, expected)) in [
            ("complained", "", "FAILED"),
            ("unsubscribed", "category = 'news'", "FAILED"),
            ("complained", "transactional = true", "SENT"),
            ("opened", "category = 'jobs'", "SENT"),
        ]
        .into_iter()
        .enumerate()
        {
            served.templates.store(Arc::new(welcome_with(settings)));
            let id = served.send_to("ada@example.com").await;
            let event = format!("e{number}");
            let signature = mailgun(&format!("t{number}"));
            let mut foreign = bounce(&signature, &event, &id, "ada@example.com");
            foreign["event-data"]["event"] = name.into();
            let answer = served.post_webhook("mailgun", foreign.to_string()).await;
            assert_eq!(answer.status().as_u16(), 204);
            let next = served.send_to("ada@example.com").await;
            assert_eq!(
                served.status_of(&next).await.0,
                expected,
                "{name} {settings}"
            );
            let bobs = served.send_to("bob@example.com").await;
            assert_eq!(served.status_of(&bobs).await.0, "SENT");
        }
    }
}

#[tokio::test]
async fn invalid_unsubscribe_token_is_rejected_without_the_store() {
    for (store, database) in stores().await {
        let mut served = served(&store).await;
        served
            .templates
            .store(Arc::new(welcome_with("category = 'news'")));
        let id = served.send_to("ada@example.com").await;
        let id = NotificationId::parse(&id).expect("an id");
        let token =
            |tokens: &MailTokens, purpose| tokens.issue(purpose, id, &hash("ada@example.com"));
        let foreign = MailTokens::parse(&"B".repeat(44)).expect("a key");
        let good = token(&mail_tokens(), TokenPurpose::Unsubscribe);
        execute(
            &database.database,
            "ALTER TABLE notify_record RENAME TO notify_record_away",
        )
        .await;
        for (token, status) in [
            (token(&foreign, TokenPurpose::Unsubscribe), 401),
            (token(&mail_tokens(), TokenPurpose::DeliveryReport), 401),
            (format!("{}{}", &good[..26], "a".repeat(20)), 401),
            (good, 503),
        ] {
            let click = "List-Unsubscribe=One-Click".to_owned();
            let answer = served
                .post_form(&format!("unsubscriptions?token={token}"), click)
                .await;
            assert_eq!(answer.status().as_u16(), status, "{token}");
        }
    }
}

#[tokio::test]
async fn rejected_webhooks_are_counted_by_known_names() {
    let (log, _guard) = CapturedLog::start();
    let (store, _database) = stores().await.remove(0);
    let served = served(&store).await;
    for provider in ["mailgun", "ada@example.com", "mailgun%0aWARN"] {
        let url = format!("{}/webhooks/{provider}", served.url);
        let body = bounce(
            &Signature(json!({"signature": "x"})),
            "e",
            "i",
            "ada@example.com",
        );
        let answer = served.client.post(url).json(&body).send().await;
        assert_eq!(answer.expect("a response").status(), 401);
    }
    let mut text = Vec::new();
    TextEncoder::new()
        .encode(&served.metrics.registry().gather(), &mut text)
        .expect("metrics");
    let text = String::from_utf8(text).expect("UTF-8");
    for (provider, count) in [("mailgun", 1), ("unknown", 2)] {
        let line = format!(
            r#"postern_notify_webhook_rejections_total{{provider="{provider}",reason="signature"}} {count}"#
        );
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    assert!(!log.text().contains("ada@"), "{}", log.text());
}

#[tokio::test]
async fn preferences_are_those_of_a_user_of_the_actor_pool() {
    let (store, _database) = stores().await.remove(0);
    let served = served(&store).await;
    let url = format!("{}/notification-preferences", served.url);
    let known = json!({"categories": [{"category": "welcome", "subscribed": false}]});
    let unknown = json!({"categories": [{"category": "nothing", "subscribed": false}]});
    let actor = served.user_token("ada", &[], "actors");
    let partner = served.user_token("ada", &[], "partners");
    for (token, body, status) in [
        (&actor, &unknown, 422),
        (
            &actor,
            &json!({"categories": [{"category": "welcome"}]}),
            400,
        ),
        (&partner, &known, 403),
        (&served.service_token("auth"), &known, 403),
        // The actor service, which knows the address, is not there.
        (&actor, &known, 503),
    ] {
        let put = served.client.put(&url).bearer_auth(token).json(body).send();
        assert_eq!(put.await.expect("a response").status(), status, "{body}");
        if status != 422 && status != 400 {
            let get = served.client.get(&url).bearer_auth(token).send();
            assert_eq!(get.await.expect("a response").status(), status);
        }
    }
    let anonymous = served.client.get(&url).send().await;
    assert_eq!(anonymous.expect("a response").status(), 401);
}
