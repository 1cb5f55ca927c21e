//! Delivery reports of a provider through the gateway: only signed ones change the status.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postern_core::Clock;
use postern_harness::json;
use postern_harness::public_api::welcome;
use postern_harness::{Answer, Changes, Installation, Person, PublicApi};

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
    let body =
        json!({"type": format!("notification.{kind}"), "data": {"notificationId": notification}})
            .to_string();
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

/// Returns the status of a notification.
async fn status_at(person: &Person, location: &str) -> String {
    let record = person.client.fetch(location, 200).await;
    record.string("/status")
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
    let created = ada
        .client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    let (id, location) = (
        created.string("/notificationId"),
        created.header("location"),
    );
    while status_at(&ada, &location).await == "QUEUED" {}
    let forged = report(
        surface,
        b"another key of thirty-two bytes..",
        "event-1",
        "delivered",
        &id,
    )
    .await;
    let _ = forged.problem(401, "invalid_webhook_signature");
    let unknown = surface
        .client()
        .post("/webhooks/twilio")
        .body("application/json", "{}")
        .send()
        .await;
    let _ = unknown.problem(401, "invalid_webhook_signature");
    assert_ne!(status_at(&ada, &location).await, "DELIVERED");
    for _ in 0..2 {
        let _ = report(surface, KEY, "event-1", "delivered", &id)
            .await
            .expect(204);
    }
    let record = ada.client.fetch(&location, 200).await;
    assert_eq!(record.string("/status"), "DELIVERED");
    let delivered = record.json()["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|e| e["type"] == "DELIVERED")
        .count();
    assert_eq!(
        delivered,
        1,
        "a repeated report is one event: {}",
        record.text()
    );
    let _ = report(surface, KEY, "event-2", "bounced", &id)
        .await
        .expect(204);
    assert_eq!(status_at(&ada, &location).await, "FAILED");
    split.stop().await;
}
