//! Recipients that a user may address, through the gateway, with the bundled actor service.

use postern_tests::http_body::json;
use postern_tests::pools::new_user;
use postern_tests::surface::{PASSWORD, welcome};
use postern_tests::{Answer, Client, Postern};
use serde_json::Value;

const PHONE: &str = "+491701234567";

fn to_actor(id: &str, channel: &str) -> Value {
    let mut body = welcome(id);
    body["channel"] = channel.into();
    body
}

/// Returns the status document once the notification has reached a final status.
async fn end_of(client: &Client, created: &Answer) -> Value {
    let location = created.header("location");
    loop {
        let view = client.read(&location).await;
        if view["status"] != "QUEUED" {
            return view;
        }
    }
}

#[tokio::test]
async fn user_can_notify_only_itself() {
    let postern = Postern::start().await;
    let (ada, bob) = (
        postern.surface().register().await,
        postern.surface().register().await,
    );
    for channel in ["email", "sms", "push"] {
        let refused = ada
            .client
            .post_json("/notifications", &to_actor(&bob.id, channel))
            .await;
        refused.problem(403, "recipient_not_allowed");
    }
    let addresses = [
        ("email", json!({"email": ada.email})),
        ("email", json!({"email": "victim@example.com"})),
        ("sms", json!({"phone": PHONE})),
        ("push", json!({"deviceToken": "token"})),
    ];
    for (channel, recipient) in addresses {
        let mut body = to_actor(&ada.id, channel);
        body["recipient"] = recipient;
        ada.client
            .refuses("/notifications", &body, 403, "recipient_not_allowed")
            .await;
        let batch = json!({"notifications": [body]});
        let results = ada
            .client
            .posted("/notification-batches", &batch, 200)
            .await
            .json();
        assert_eq!(
            results["results"][0]["code"], "recipient_not_allowed",
            "{results}"
        );
    }
    let own = ada
        .client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    assert_eq!(end_of(&ada.client, &own).await["status"], "SENT");
    bob.client
        .denied(&own.header("location"), 404, "not_found")
        .await;
    let profile = bob.client.get(&format!("/actors/{}", ada.id)).send();
    profile.await.problem(404, "not_found");
    postern.stop().await;
}

/// Stores a profile with the verified number at the actor service.
async fn register_verified_number(postern: &Postern, subject: &str) {
    let auth = postern.service("auth").await;
    let profile =
        json!({"phone": PHONE, "phoneVerified": true, "emailVerified": false, "deviceToken": "t"});
    let known = json!({"actorId": subject, "email": "ada@example.com", "profile": profile});
    let _ = auth.posted("/actors/register", &known, 201).await;
}

#[tokio::test]
async fn unverified_number_of_a_user_gets_no_message() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let register = |email: &str, profile: Value| {
        let body = json!({"email": email, "password": PASSWORD, "profile": profile});
        surface.client().post("/auth/register").json(&body)
    };
    let forged = register(
        "eve@example.com",
        json!({"phone": PHONE, "phoneVerified": true, "emailVerified": true}),
    );
    forged
        .send()
        .await
        .problem(422, "validation_failed")
        .assert_pointers(&["/profile/phoneVerified", "/profile/emailVerified"]);
    let tokens = register("eve@example.com", json!({"phone": PHONE}))
        .send()
        .await
        .expect(201)
        .json();
    let eve = surface.person("eve@example.com", tokens).await;
    eve.client
        .refuses(
            "/notifications",
            &to_actor(&eve.id, "sms"),
            422,
            "validation_failed",
        )
        .await
        .assert_pointers(&["/recipient/actorId"]);

    // The same number, which the actor service reports as verified; a service may also use the
    // other one.
    let (subject, token) = new_user(surface, &[]).await;
    register_verified_number(&postern, &subject).await;
    let ada = surface.client().with_token(&token);
    ada.refuses(
        "/notifications",
        &to_actor(&subject, "push"),
        422,
        "validation_failed",
    )
    .await
    .assert_pointers(&["/recipient/actorId"]);
    for (channel, status) in [("sms", "SENT"), ("email", "SENT")] {
        let created = ada
            .posted("/notifications", &to_actor(&subject, channel), 201)
            .await;
        let view = end_of(&ada, &created).await;
        assert_eq!(view["status"], status, "{channel}: {view}");
    }
    let service = postern.service("document").await;
    for (id, channel) in [(&eve.id, "sms"), (&subject, "email")] {
        let created = service
            .posted("/notifications", &to_actor(id, channel), 201)
            .await;
        assert_eq!(
            end_of(&service, &created).await["status"],
            "SENT",
            "a service may address anyone"
        );
    }
    postern.stop().await;
}
