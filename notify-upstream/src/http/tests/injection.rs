//! Strings that were made to be more than text, in every field of a notification.

use std::collections::HashMap;

use futures_util::StreamExt;

use super::*;
use crate::delivery::provider::injection::naughty;

/// Puts a string into a request.
type Put = fn(&mut Value, &str);

/// Each field that takes text, by its pointer, and a request that has a string there.
const FIELDS: &[(&str, Put)] = &[
    ("/channel", |body, text| body["channel"] = text.into()),
    ("/recipient", |body, text| body["recipient"] = text.into()),
    ("/recipient/email", |body, text| {
        body["recipient"]["email"] = text.into()
    }),
    ("/recipient/email", |body, text| {
        body["recipient"]["email"] = format!("ada@example.com{text}").into()
    }),
    ("/recipient/actorId", |body, text| {
        body["recipient"] = json!({"actorId": text})
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

/// Posts many at once; what is answered, in their order.
async fn post_all(served: &Served, bodies: Vec<Value>) -> Vec<(StatusCode, Value)> {
    let posts = bodies
        .into_iter()
        .map(|body| async move { served.post("/notifications", &[], &body).await });
    futures_util::stream::iter(posts)
        .buffered(32)
        .collect()
        .await
}

#[tokio::test]
async fn a_field_takes_a_naughty_string_as_it_is_or_is_named() {
    for (store, _database) in stores().await {
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
                let errors = answer["errors"].as_array().expect("the mistakes");
                let named = |error: &Value| {
                    error["pointer"]
                        .as_str()
                        .is_some_and(|at| at.starts_with(pointer))
                };
                assert!(errors.iter().any(named), "{pointer} {text:?}: {answer}");
            }
        }
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn a_variable_is_text_in_one_message_to_one_recipient() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let strings = naughty();
        let with = |name: &String| {
            let mut body = welcome();
            // As a name of a variable, too.
            body["variables"] = json!({"name": name, format!("x{name}"): name});
            body
        };
        let answers = post_all(&served, strings.iter().map(with).collect()).await;
        // Some of eight are in hand at once.
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
                // No subject has room for it.
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
            let [subject, words] = &mail.words;
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
            "one message each"
        );
        served.shutdown.cancel();
    }
}
