//! Delivery reports of a provider through the gateway: only signed ones change the status.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postern_core::Clock;
use postern_harness::json;
use postern_harness::public_api::welcome;
use postern_harness::{Answer, Changes, Installation, PublicApi};

use crate::contract::confirm_registration;

/// The key of the Standard Webhooks secret `whsec_…`.
const KEY: &[u8] = b"a key of thirty-two bytes or more";

/// Sends an event as a provider does, signed with `key`.
async fn report(
    surface: &PublicApi,
    key: &[u8],
    event: &str,
    kind: &str,
    notification: &str,
) -> Answer {
    let (kind, data) = (
        format!("notification.{kind}"),
        json!({"notificationId": notification}),
    );
    let body = json!({"type": kind, "data": data}).to_string();
    let timestamp = Clock::system().now().unix_seconds();
    let signed = format!("{event}.{timestamp}.{body}");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
    surface
        .client()
        .post("/webhooks/standard")
        .header("webhook-id", event)
        .header("webhook-timestamp", &timestamp.to_string())
        .header("webhook-signature", &format!("v1,{}", STANDARD.encode(tag)))
        .body("application/json", body)
        .send()
        .await
}

#[tokio::test]
async fn signed_report_changes_the_status_and_forged_does_not() {
    let secret = format!("whsec_{}", STANDARD.encode(KEY));
    let changes = Changes {
        auth: vec![("confirm", "\"code\"")],
        notify: "[webhooks.standard]\nsecret_env = \"WEBHOOK_SECRET\"\n".to_owned(),
        env: vec![("WEBHOOK_SECRET", secret)],
        ..Changes::default()
    };
    let split = Installation::start_with(changes).await;
    let surface = split.surface();
    let ada = confirm_registration(&split).await;
    let client = &ada.client;
    let created = client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    let (id, location) = (
        created.string("/notificationId"),
        created.header("location"),
    );
    client.settled(&location).await;
    let other_key = b"another key of thirty-two bytes..";
    let forged = report(surface, other_key, "event-1", "delivered", &id).await;
    forged.problem(401, "invalid_webhook_signature");
    assert_eq!(client.read(&location).await["status"], "SENT");
    for _ in 0..2 {
        let told = report(surface, KEY, "event-1", "delivered", &id).await;
        let _ = told.expect(204);
    }
    let record = client.read(&location).await;
    assert_eq!(record["status"], "DELIVERED");
    let events = record["events"].as_array().expect("events").iter();
    let delivered = events.filter(|event| event["type"] == "DELIVERED");
    assert_eq!(delivered.count(), 1, "a repeated report: {record}");
    let told = report(surface, KEY, "event-2", "bounced", &id).await;
    let _ = told.expect(204);
    assert_eq!(client.read(&location).await["status"], "FAILED");
    split.stop().await;
}
