//! The operations of notifications.

use std::time::Duration;

use postern_harness::json;
use postern_harness::mail_token::{UNSUBSCRIBE, mail_token};
use postern_harness::public_api::{text, welcome};
use postern_harness::{Person, Standalone};

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
    let (client, message) = (&ada.client, welcome(&ada.id));
    let created = client.posted("/notifications", &message, 201).await;
    let (id, location) = (
        created.string("/notificationId"),
        created.header("location"),
    );
    let page = client.fetch("/notifications?limit=1", 200).await;
    assert_eq!(page.string("/notifications/0/notificationId"), id);
    let mut unknown = message.clone();
    unknown["template"] = json!("no-such-template");
    let batch = json!({"notifications": [message, unknown]});
    let results = client.posted("/notification-batches", &batch, 200).await;
    let results = results.json()["results"].clone();
    let statuses = [0, 1].map(|at| results[at]["status"].clone());
    assert_eq!(statuses, [201, 422]);
    let mut later = message.clone();
    later["sendAt"] = json!(postern.clock().now().plus(Duration::from_secs(86_400)));
    let later = client.posted("/notifications", &later, 201).await;
    let later = later.header("location");
    let status = async || client.fetch(&later, 200).await.string("/status");
    assert_eq!(status().await, "SCHEDULED");
    // The recipient is known only once the notification is sent.
    client.settled(&location).await;
    let key = postern.surface().env("NOTIFY_TOKEN_KEY");
    let token = mail_token(key, UNSUBSCRIBE, &id, &ada.email);
    let click = format!("/unsubscriptions?token={token}");
    let _ = client.fetch(&click, 200).await;
    let mut verified = postern.verified_person().await;
    verified.client = client.with_token(text(&verified.tokens, "accessToken"));
    preferences(&verified).await;
    let form = "application/x-www-form-urlencoded";
    let click = client.post(&click).body(form, "List-Unsubscribe=One-Click");
    let _ = click.send().await.expect(204);
    let _ = client.delete(&later).send().await.expect(204);
    assert_eq!(status().await, "CANCELLED");
}
