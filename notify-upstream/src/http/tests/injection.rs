//! Adversarial strings in every field of a notification.

use std::collections::HashMap;

use futures_util::StreamExt;

use super::*;
use crate::testing::injection::naughty;

/// A function that puts a string into a request.
type FieldSetter = fn(&mut Value, &str);

/// Text fields by JSON pointer, with a function that puts a string there.
const FIELDS: &[(&str, FieldSetter)] = &[
    ("/channel", |body, text| body["channel"] = text.into()),
    ("/recipient", |body, text| body["recipient"] = text.into()),
    ("/recipient/email", |body, text| {
        body["recipient"]["email"] = text.into();
    }),
    ("/recipient/email", |body, text| {
        body["recipient"]["email"] = format!("ada@example.com{text}").into();
    }),
    ("/recipient/actorId", |body, text| {
        body["recipient"] = json!({"actorId": text});
    }),
    ("/recipient/phone", |body, text| {
        body["channel"] = "sms".into();
        body["recipient"] = json!({"phone": text});
    }),
    ("/recipient/deviceToken", |body, text| {
        body["channel"] = "push".into();
        body["recipient"] = json!({"deviceToken": text});
    }),
    ("/recipient/subscription", |body, text| {
        body["channel"] = "push".into();
        let keys = json!({"p256dh": text, "auth": text});
        body["recipient"] = json!({"subscription": {"endpoint": text, "keys": keys}});
    }),
    ("/template", |body, text| body["template"] = text.into()),
    ("/variables", |body, text| body["variables"] = text.into()),
    ("/locale", |body, text| body["locale"] = text.into()),
    ("/priority", |body, text| body["priority"] = text.into()),
    ("/sendAt", |body, text| body["sendAt"] = text.into()),
    ("/expiresAt", |body, text| body["expiresAt"] = text.into()),
    ("/", |body, text| body[text] = text.into()),
];

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
    for (pointer, put) in FIELDS {
        let strings = naughty();
        let bodies = strings.iter().map(|text| {
            let mut body = welcome();
            put(&mut body, text);
            body
        });
        for (text, (status, answer)) in strings
            .iter()
            .zip(post_all(&served, bodies.collect()).await)
        {
            if status == StatusCode::CREATED {
                continue;
            }
            assert!(
                [400, 422].contains(&status.as_u16()),
                "{pointer} {text:?}: {status} {answer}"
            );
            let errors = answer["errors"].as_array().expect("a list of errors");
            let named = |error: &Value| {
                error["pointer"]
                    .as_str()
                    .is_some_and(|at| at.starts_with(pointer))
            };
            assert!(errors.iter().any(named), "{pointer} {text:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn adversarial_variable_stays_text_in_a_single_message() {
    // PostgreSQL takes less text than SQLite.
    let (store, _database) = stores().await.swap_remove(1);
    let mut served = served(&store).await;
    let strings = naughty();
    let with = |name: &String| {
        let mut body = welcome();
        // The string is also used in the name of a variable.
        body["variables"] = json!({"name": name, format!("x{name}"): name});
        body
    };
    let answers = post_all(&served, strings.iter().map(with).collect()).await;
    // Up to eight are delivered concurrently.
    for _ in 0..strings.len() / 4 {
        served.deliver().await;
    }
    let mails = served.script.mails();
    let by_id: HashMap<_, _> = mails
        .iter()
        .map(|mail| (mail.id.to_string(), mail))
        .collect();
    let mut refused = 0;
    for (text, (status, answer)) in strings.iter().zip(answers) {
        if status != StatusCode::CREATED {
            // The rendered subject exceeds its limit.
            assert!(text.len() > 400, "{text:?}: {answer}");
            let error = &answer["errors"][0];
            assert_eq!(
                (&error["pointer"], &error["code"]),
                (&"/variables".into(), &"does_not_render".into())
            );
            refused += 1;
            continue;
        }
        let mail = by_id[answer["notificationId"].as_str().expect("an id")];
        let [subject, words] = &mail.text;
        assert_eq!(mail.to, "ada@example.com", "{text:?}");
        assert!(
            words.starts_with(&format!("Hello {text},\n\nyour account is ready.")),
            "{text:?}: {words:?}"
        );
        assert!(
            subject.starts_with("Welcome,") && !subject.contains(['\r', '\n']),
            "{subject:?}"
        );
    }
    let accepted = strings.len() - refused;
    assert_eq!(
        (mails.len(), by_id.len()),
        (accepted, accepted),
        "one message per notification"
    );
}
