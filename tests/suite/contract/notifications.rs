//! The operations of notifications.

use std::time::Duration;

use postern_harness::json;
use postern_harness::mail_token::{UNSUBSCRIBE, mail_token};
use postern_harness::public_api::welcome;
use postern_harness::{Person, Standalone};

/// Returns the status of a notification.
async fn status_at(person: &Person, location: &str) -> String {
    let record = person.client.fetch(location, 200).await;
    record.string("/status")
}

/// Asserts which notification the list of a user begins with.
async fn newest_is(person: &Person, id: &str) {
    let page = person.client.get("/notifications?limit=1").send().await;
    let newest = page.expect(200).string("/notifications/0/notificationId");
    assert_eq!(newest, id);
}

/// Leaves a category and returns to it.
async fn preferences(ada: &Person) {
    let path = "/notification-preferences";
    let is_subscribed = async || {
        let found = ada.client.read(path).await;
        let all = found["categories"].as_array().expect("categories").clone();
        let welcome = all.iter().find(|one| one["category"] == "welcome");
        welcome.expect("the category of a shipped template")["subscribed"] == true
    };
    assert!(is_subscribed().await);
    for subscribed in [false, true] {
        let body = json!({"categories": [{"category": "welcome", "subscribed": subscribed}]});
        let _ = ada.client.put(path).json(&body).send().await.expect(200);
        assert_eq!(is_subscribed().await, subscribed);
    }
}

/// Requests every operation successfully.
pub(super) async fn all_operations(postern: &Standalone, ada: &Person) {
    let created = ada
        .client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    let _ = ada.client.fetch(&created.header("location"), 200).await;
    newest_is(ada, &created.string("/notificationId")).await;
    let mut unknown = welcome(&ada.id);
    unknown["template"] = json!("no-such-template");
    let batch = json!({"notifications": [welcome(&ada.id), unknown]});
    let results = ada
        .client
        .posted("/notification-batches", &batch, 200)
        .await
        .json();
    assert_eq!(
        (
            &results["results"][0]["status"],
            &results["results"][1]["status"]
        ),
        (&json!(201), &json!(422))
    );
    let mut later = welcome(&ada.id);
    later["sendAt"] = json!(postern.clock().now().plus(Duration::from_secs(86_400)));
    let later = ada
        .client
        .posted("/notifications", &later, 201)
        .await
        .header("location");
    assert_eq!(status_at(ada, &later).await, "SCHEDULED");
    // The recipient is known only once the notification is sent.
    while status_at(ada, &created.header("location")).await == "QUEUED" {}
    let surface = postern.surface();
    let (key, id) = (
        surface.env("NOTIFY_TOKEN_KEY"),
        created.string("/notificationId"),
    );
    let click = format!(
        "/unsubscriptions?token={}",
        mail_token(key, UNSUBSCRIBE, &id, &ada.email)
    );
    let _ = ada.client.fetch(&click, 200).await;
    let mut verified = postern.verified_person().await;
    let token = verified.tokens["accessToken"].as_str().expect("a token");
    verified.client = ada.client.with_token(token);
    preferences(&verified).await;
    let form = "application/x-www-form-urlencoded";
    let click = ada
        .client
        .post(&click)
        .body(form, "List-Unsubscribe=One-Click")
        .send()
        .await;
    let _ = click.expect(204);
    let _ = ada.client.delete(&later).send().await.expect(204);
    let cancelled = ada.client.fetch(&later, 200).await;
    assert_eq!(cancelled.string("/status"), "CANCELLED");
}
