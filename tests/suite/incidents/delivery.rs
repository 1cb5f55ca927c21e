//! Incidents of notifications: providers, addresses, templates, quotas and delivery reports.

use postern_harness::pools::new_user;
use postern_harness::public_api::{PASSWORD, message, welcome};
use serde_json::json;

use super::fault_proxy::Fault;
use super::samples::Selector;
use super::services::{Services, USER_QUOTA};

/// An address of which the mail server rejects messages with 451 at first, and then with 550.
const BOUNCING: &str = "ada@451-550.test";

/// A telephone number in test ranges of Twilio.
const PHONE: &str = "+15005550009";

pub(super) async fn plant(services: &mut Services) {
    bouncing_address(services).await;
    wrong_provider_token(services).await;
    unverified_address(services).await;
    rejected_requests(services).await;
    exhausted_quota(services).await;
    forged_report(services).await;
}

/// A server that rejects temporarily and then for good, and the address that is suppressed then.
async fn bouncing_address(services: &mut Services) {
    services.evidence.begin().await;
    let before = services.evidence.samples().await;
    let id = services.submit("email", json!({"email": BOUNCING})).await;
    let shown = services.show(&id, "FAILED").await;
    services
        .prove("SMTP server rejects, 4xx then 5xx", &shown)
        .await;
    let dead =
        Selector::parse(r#"postern_notify_attempts_total{provider="smtp",outcome="failed"}"#);
    let after = services.evidence.samples().await;
    assert!(after.sum(&dead) > before.sum(&dead), "no dead letter");
    services.evidence.begin().await;
    let id = services.submit("email", json!({"email": BOUNCING})).await;
    let shown = services.show(&id, "FAILED").await;
    services.prove("Address is suppressed", &shown).await;
}

async fn wrong_provider_token(services: &mut Services) {
    services.evidence.begin().await;
    let id = services.submit("sms", json!({"phone": PHONE})).await;
    let shown = services.show(&id, "twilio").await;
    services.prove("Provider token is wrong", &shown).await;
}

async fn unverified_address(services: &mut Services) {
    services.evidence.begin().await;
    let surface = services.split.surface();
    let email = "grace@example.com";
    let body = json!({"email": email, "password": PASSWORD, "profile": {"phone": PHONE}});
    let tokens = surface.client().posted("/auth/register", &body, 201).await;
    let grace = surface.person(email, tokens.json()).await;
    let mut body = welcome(&grace.id);
    body["channel"] = "sms".into();
    // While the actor service is away, the address is looked up at delivery.
    services.actor.set(Fault::Stall);
    let created = grace.client.posted("/notifications", &body, 201).await;
    services.actor.set(Fault::None);
    let id = created.string("/notificationId");
    let shown = services.show(&id, "FAILED").await;
    services.prove("Address is not verified", &shown).await;
}

/// Requests that do not fit the templates: the caller gets 422.
async fn rejected_requests(services: &mut Services) {
    let mut body = message("email", &json!({"email": "ada@example.com"}));
    body["variables"] = json!({"nmae": "Ada"});
    for (template, code, incident) in [
        ("welcome", "validation_failed", "Template variable is wrong"),
        ("welcom", "unknown_template", "Template is unknown"),
    ] {
        services.evidence.begin().await;
        body["template"] = template.into();
        let refused = services.service.refuses("/notifications", &body, 422, code);
        let said = refused.await.body.to_string();
        services.prove(incident, &said).await;
    }
}

/// The address is verified: messages to others have a limit of their own.
async fn exhausted_quota(services: &mut Services) {
    let surface = services.split.surface();
    let (ada, token) = new_user(surface, &[]).await;
    let client = surface.client().with_token(&token);
    let auth = services.split.development().service_token("auth").await;
    let auth = surface.client().with_token(&auth);
    let profile = json!({"emailVerified": true});
    let actor = json!({"actorId": ada, "email": "ada@example.com", "profile": profile});
    let _ = auth.posted("/actors/register", &actor, 201).await;
    services.evidence.begin().await;
    let mut said = String::new();
    for _ in 0..=USER_QUOTA {
        let answer = client.post_json("/notifications", &welcome(&ada)).await;
        said = answer.text();
    }
    services
        .prove("Notification quota is exhausted", &said)
        .await;
}

async fn forged_report(services: &mut Services) {
    services.evidence.begin().await;
    let request = services.split.surface().client().post("/webhooks/standard");
    let refused = request
        .header("webhook-id", "event-1")
        .header("webhook-timestamp", "1")
        .header("webhook-signature", "v1,AAAA")
        .body("application/json", "{}")
        .send()
        .await;
    let refused = refused.problem(401, "invalid_webhook_signature");
    let said = refused.body.to_string();
    services.prove("Webhook signature is wrong", &said).await;
}
