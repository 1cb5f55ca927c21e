//! Adversarial strings in every field of a notification.

use futures_util::StreamExt;

use super::*;
use crate::testing::injection::naughty;

/// Text fields by JSON pointer, with the members of a request in which the string replaces `TEXT`, or
/// follows an address at `ADA`.
const FIELDS: [(&str, &str); 15] = [
    ("/channel", r#"{"channel": TEXT}"#),
    ("/recipient", r#"{"recipient": TEXT}"#),
    ("/recipient/email", r#"{"recipient": {"email": TEXT}}"#),
    ("/recipient/email", r#"{"recipient": {"email": ADA}}"#),
    ("/recipient/actorId", r#"{"recipient": {"actorId": TEXT}}"#),
    (
        "/recipient/phone",
        r#"{"channel": "sms", "recipient": {"phone": TEXT}}"#,
    ),
    (
        "/recipient/deviceToken",
        r#"{"channel": "push", "recipient": {"deviceToken": TEXT}}"#,
    ),
    (
        "/recipient/subscription",
        r#"{"channel": "push", "recipient": {"subscription":
            {"endpoint": TEXT, "keys": {"p256dh": TEXT, "auth": TEXT}}}}"#,
    ),
    ("/template", r#"{"template": TEXT}"#),
    ("/variables", r#"{"variables": TEXT}"#),
    ("/locale", r#"{"locale": TEXT}"#),
    ("/priority", r#"{"priority": TEXT}"#),
    ("/sendAt", r#"{"sendAt": TEXT}"#),
    ("/expiresAt", r#"{"expiresAt": TEXT}"#),
    ("/", r#"{TEXT: TEXT}"#),
];

/// Returns a request with these members.
fn request(members: &str, text: &str) -> Value {
    let members = if members.contains("ADA") {
        members.replace("ADA", &json!(format!("ada@example.com{text}")).to_string())
    } else {
        members.replace("TEXT", &json!(text).to_string())
    };
    let members: Value = serde_json::from_str(&members).expect("JSON");
    let mut body = welcome();
    let members = members.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(members);
    body
}

/// Posts bodies concurrently and returns the responses in their order.
async fn post_all(served: &TestServer, bodies: Vec<Value>) -> Vec<(StatusCode, Value)> {
    let posts = bodies
        .into_iter()
        .map(|body| async move { served.post("/notifications", &[], &body).await });
    futures_util::stream::iter(posts)
        .buffered(32)
        .collect()
        .await
}

#[tokio::test]
async fn adversarial_string_is_accepted_or_its_field_is_reported() {
    // PostgreSQL takes less text than SQLite.
    let (store, _database) = stores().await.swap_remove(1);
    let served = served(&store).await;
    for (pointer, members) in FIELDS {
        let strings = naughty();
        let bodies = strings.iter().map(|text| request(members, text));
        for (text, (status, answer)) in strings
            .iter()
            .zip(post_all(&served, bodies.collect()).await)
        {
            if status == StatusCode::CREATED {
                continue;
            }
            let case = format!("{pointer} {text:?}: {status} {answer}");
            assert!([400, 422].contains(&status.as_u16()), "{case}");
            let mut errors = answer["errors"]
                .as_array()
                .expect("a list of errors")
                .iter();
            let is_named = |at: &str| at.starts_with(pointer);
            let named = errors.any(|error| error["pointer"].as_str().is_some_and(is_named));
            assert!(named, "{case}");
        }
    }
}
