//! Effects and limits of delivery reports and unsubscriptions.

use aws_lc_rs::hmac;
use postern_core::testing::CapturedLog;

use super::*;
use crate::address::hash;
use crate::delivery::mail_token::TokenPurpose;
use crate::delivery::suppression::SuppressionList;
use crate::notification::{Channel, NotificationId};
use crate::testing::{assert_metric, execute, welcome_with};

const ADA: &str = "ada@example.com";
const BOB: &str = "bob@example.com";

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
    /// Posts a report of Mailgun, and returns the status of the response.
    async fn mailgun(&self, report: &Value) -> u16 {
        self.post_form("webhooks/mailgun", report.to_string()).await
    }

    async fn post_form(&self, path: &str, body: String) -> u16 {
        let request = self.client.post(format!("{}/{path}", self.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let response = request.body(body).send().await;
        response.expect("a response").status().as_u16()
    }

    async fn send_to(&mut self, address: &str) -> String {
        let mut body = welcome();
        body["recipient"] = json!({"email": address});
        let id = self.accepted(&body).await;
        self.deliver().await;
        id
    }

    /// Sends to an address, and returns the status and its reason.
    async fn sent_to(&mut self, address: &str) -> (Value, Value) {
        let id = self.send_to(address).await;
        self.status_of(&id).await
    }

    async fn status_of(&self, id: &str) -> (Value, Value) {
        let view = self.get(id, "auth", None).await.2;
        (view["status"].clone(), view["reason"].clone())
    }
}

#[tokio::test]
async fn mailgun_token_is_bound_to_the_first_body() {
    for (mut served, _database) in servers().await {
        let (mine, other) = (served.send_to(ADA).await, served.send_to(BOB).await);
        let signature = mailgun("t1");
        let first = bounce(&signature, "e1", &mine, ADA);
        assert_eq!(served.mailgun(&first).await, 204);
        assert_eq!(served.mailgun(&first).await, 204);
        let replayed = bounce(&signature, "e2", &other, BOB);
        assert_eq!(served.mailgun(&replayed).await, 401);
        let bounced = ("FAILED".into(), "BOUNCED".into());
        assert_eq!(served.status_of(&mine).await, bounced);
        assert_eq!(served.status_of(&other).await.0, "SENT");
        // Moving characters between timestamp and token leaves the signature valid and yields the
        // same token.
        let mut shifted = bounce(&signature, "e3", &other, BOB);
        let whole = format!("{}t1", START.unix_seconds());
        shifted["signature"]["timestamp"] = whole[..9].into();
        shifted["signature"]["token"] = whole[9..].into();
        assert_eq!(served.mailgun(&shifted).await, 401);
        let next = bounce(&mailgun("t2"), "e4", &other, BOB);
        assert_eq!(served.mailgun(&next).await, 204);
        assert_eq!(served.status_of(&other).await.0, "FAILED");
    }
}

#[tokio::test]
async fn report_suppresses_only_the_address_of_its_notification() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let mine = served.send_to(ADA).await;
        let stranger = bounce(&mailgun("t1"), "e1", &mine, BOB);
        assert_eq!(served.mailgun(&stranger).await, 204);
        assert_eq!(served.sent_to(BOB).await.0, "SENT");
        assert_eq!(served.sent_to(ADA).await.0, "SENT", "no report names it");
        let own = bounce(&mailgun("t2"), "e2", &mine, "Ada@Example.com");
        assert_eq!(served.mailgun(&own).await, 204);
        let kind = SuppressionList::Suppressed.kind(Channel::Email);
        let stored = store.suppressed_kind([kind, 8], &hash(ADA), None).await;
        assert_eq!(stored.expect("no error"), Some(kind), "before the response");
        let silenced = ("FAILED".into(), "ADDRESS_SUPPRESSED".into());
        assert_eq!(served.sent_to(ADA).await, silenced);
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
    for (mut served, _database) in servers().await {
        let category = |settings: &str| Arc::new(welcome_with(settings));
        served.templates.store(category("category = 'news'"));
        let id = served.send_to(ADA).await;
        let click = "List-Unsubscribe=One-Click".to_owned();
        let path = link(TokenPurpose::Unsubscribe, &id, ADA);
        let wrong_purpose = link(TokenPurpose::DeliveryReport, &id, ADA);
        let other = link(TokenPurpose::Unsubscribe, &id, BOB);
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
            assert_eq!(served.post_form(path, body).await, status, "{path}");
        }
        for (settings, expected) in [
            ("category = 'news'", "FAILED"),
            ("category = 'jobs'", "SENT"),
            ("", "SENT"),
            ("transactional = true", "SENT"),
        ] {
            served.templates.store(category(settings));
            assert_eq!(served.sent_to(ADA).await.0, expected, "{settings}");
        }
        served.templates.store(category("transactional = true"));
        let needed = served.send_to(ADA).await;
        let path = link(TokenPurpose::Unsubscribe, &needed, ADA);
        let answer = served.post_form(&path, "List-Unsubscribe=One-Click".to_owned());
        assert_eq!(answer.await, 401, "no category");
        served.templates.store(category("category = 'news'"));
        assert_eq!(served.sent_to(BOB).await.0, "SENT");
    }
}

#[tokio::test]
async fn opened_link_is_a_page_and_changes_nothing() {
    let (mut served, _database) = servers().await.remove(0);
    let id = served.send_to(ADA).await;
    let path = link(TokenPurpose::Unsubscribe, &id, ADA);
    let url = format!("{}/{path}", served.url);
    let page = ok(served.client.get(&url).send()).await;
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()["cache-control"], "no-store");
    assert_eq!(page.headers()["referrer-policy"], "no-referrer");
    let text = page.text().await.expect("a text");
    for part in ["<b>welcome</b>", "<button"] {
        assert!(text.contains(part), "{text}");
    }
    let foreign = link(TokenPurpose::Unsubscribe, &id, BOB);
    let url_of_bob = format!("{}/{foreign}", served.url);
    let answer = ok(served.client.get(url_of_bob).send()).await;
    assert_eq!(answer.status(), 401);
    assert_eq!(served.sent_to(ADA).await.0, "SENT");
    let form = [("List-Unsubscribe", "One-Click")];
    let request = served.client.post(&url).form(&form);
    let request = request.header("accept", "text/html,*/*;q=0.8");
    let done = ok(request.send()).await;
    assert_eq!(done.status(), 200);
    assert!(!done.text().await.expect("a text").contains("<button"));
    let unwanted = ("FAILED".into(), "RECIPIENT_UNSUBSCRIBED".into());
    assert_eq!(served.sent_to(ADA).await, unwanted);
}

#[tokio::test]
async fn complaint_unsubscribes_from_the_category_only() {
    for (mut served, _database) in servers().await {
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
            let id = served.send_to(ADA).await;
            let event = format!("e{number}");
            let signature = mailgun(&format!("t{number}"));
            let mut foreign = bounce(&signature, &event, &id, ADA);
            foreign["event-data"]["event"] = name.into();
            assert_eq!(served.mailgun(&foreign).await, 204);
            assert_eq!(served.sent_to(ADA).await.0, expected, "{name} {settings}");
            assert_eq!(served.sent_to(BOB).await.0, "SENT");
        }
    }
}

#[tokio::test]
async fn invalid_unsubscribe_token_is_rejected_without_the_store() {
    for (mut served, database) in servers().await {
        let news = Arc::new(welcome_with("category = 'news'"));
        served.templates.store(news);
        let id = served.send_to(ADA).await;
        let id = NotificationId::parse(&id).expect("an id");
        let token = |tokens: &MailTokens, purpose| tokens.issue(purpose, id, &hash(ADA));
        let foreign = MailTokens::parse(&"B".repeat(44)).expect("a key");
        let good = token(&mail_tokens(), TokenPurpose::Unsubscribe);
        let away = "ALTER TABLE notify_record RENAME TO notify_record_away";
        execute(&database.database, away).await;
        for (token, status) in [
            (token(&foreign, TokenPurpose::Unsubscribe), 401),
            (token(&mail_tokens(), TokenPurpose::DeliveryReport), 401),
            (format!("{}{}", &good[..26], "a".repeat(20)), 401),
            (good, 503),
        ] {
            let click = "List-Unsubscribe=One-Click".to_owned();
            let path = format!("unsubscriptions?token={token}");
            assert_eq!(served.post_form(&path, click).await, status, "{token}");
        }
    }
}

#[tokio::test]
async fn rejected_webhooks_are_counted_by_known_names() {
    let (log, _guard) = CapturedLog::start();
    let (served, _database) = servers().await.remove(0);
    for provider in ["mailgun", ADA, "mailgun%0aWARN"] {
        let url = format!("{}/webhooks/{provider}", served.url);
        let body = bounce(&Signature(json!({"signature": "x"})), "e", "i", ADA);
        let answer = served.client.post(url).json(&body).send().await;
        assert_eq!(answer.expect("a response").status(), 401);
    }
    for (provider, count) in [("mailgun", 1), ("unknown", 2)] {
        let line = format!(
            r#"postern_notify_webhook_rejections_total{{provider="{provider}",reason="signature"}} {count}"#
        );
        assert_metric(&served.metrics, &line);
    }
    assert!(!log.text().contains("ada@"), "{}", log.text());
}

#[tokio::test]
async fn preferences_are_those_of_a_user_of_the_actor_pool() {
    let (served, _database) = servers().await.remove(0);
    let url = format!("{}/notification-preferences", served.url);
    let known = json!({"categories": [{"category": "welcome", "subscribed": false}]});
    let unknown = json!({"categories": [{"category": "nothing", "subscribed": false}]});
    let incomplete = json!({"categories": [{"category": "welcome"}]});
    let actor = served.user_token("ada", &[], "actors");
    let partner = served.user_token("ada", &[], "partners");
    for (token, body, status) in [
        (&actor, &unknown, 422),
        (&actor, &incomplete, 400),
        (&partner, &known, 403),
        (&served.service_token("auth"), &known, 403),
        // The actor service, which knows the address, is not there.
        (&actor, &known, 503),
    ] {
        let put = served.client.put(&url).bearer_auth(token).json(body).send();
        assert_eq!(ok(put).await.status(), status, "{body}");
        if status != 422 && status != 400 {
            let get = served.client.get(&url).bearer_auth(token).send();
            assert_eq!(ok(get).await.status(), status);
        }
    }
    let anonymous = ok(served.client.get(&url).send()).await;
    assert_eq!(anonymous.status(), 401);
}
