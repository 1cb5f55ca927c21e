//! A complete user journey through the gateway.

use postern_core::testing::assert_members;
use postern_harness::json;
use postern_harness::public_api::{self, credentials, resume, text, welcome};
use postern_harness::{Installation, Person, PublicApi, Standalone};

use crate::metrics_reference::assert_documented;

/// All steps in the order of a user.
async fn a_day(surface: &PublicApi) {
    let ada = register(surface).await;
    upload(&ada).await;
    social(surface).await;
    refresh(surface, &ada).await;
    let again = credentials(&ada.email);
    let tokens = surface.client().posted("/auth/login", &again, 200).await;
    let tokens = tokens.json();
    assert_eq!(surface.person(&ada.email, tokens).await.id, ada.id);
    notify(surface, &ada).await;
}

async fn register(surface: &PublicApi) -> Person {
    let ada = surface.register().await;
    let me = ada.client.read("/auth/me").await;
    assert_members(&me, &json!({"kind": "user", "userId": ada.id}));
    let actor = ada.client.read(&format!("/actors/{}", ada.id)).await;
    assert_eq!(actor["email"], ada.email, "{actor}");
    assert_members(&actor, &json!({"firstName": "Ada", "lastName": "Lovelace"}));
    let found = ada.client.read(&format!("/actor?actorId={}", ada.id)).await;
    assert_eq!(found, json!([actor]));
    ada
}

async fn upload(ada: &Person) {
    let (content, sha256) = resume(6 << 20);
    let stored = public_api::upload(&ada.client, "c-1", &content)
        .send()
        .await;
    let stored = stored.expect(201).json();
    assert_members(&stored, &json!({"sha256": sha256, "size": content.len()}));
    let named = json!({"candidateId": "c-1", "fileName": "ada.pdf"});
    assert_members(&stored, &named);
    let location = format!("/resumes/{}", text(&stored, "resumeId"));
    assert_eq!(ada.client.read(&location).await, stored);
}

async fn social(surface: &PublicApi) {
    let token = surface.social_token("grace").await;
    let exchanged = surface.exchange(&token).await.expect(200).json();
    let user = &exchanged["user"];
    let grace = json!({"email": "grace.social@example.com", "name": "Grace Hopper"});
    assert_members(user, &grace);
    let tokens = exchanged["tokens"].clone();
    assert!(tokens.is_object(), "of the local pool: {exchanged}");
    let grace = surface.person("grace.social@example.com", tokens).await;
    assert_eq!(user["userId"], grace.id.as_str());
    let second = surface.exchange(&token).await;
    second.problem(401, "invalid_temporary_token");
}

async fn refresh(surface: &PublicApi, ada: &Person) {
    let token = text(&ada.tokens, "refreshToken");
    let renewed = surface.refresh(token).await.expect(200).json();
    assert_eq!(surface.person(&ada.email, renewed).await.id, ada.id);
}

async fn notify(surface: &PublicApi, ada: &Person) {
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
    let location = created.header("location");
    assert_eq!(created.string("/status"), "QUEUED");
    let id = created.string("/notificationId");
    assert_eq!(location, format!("/notifications/{id}"));
    let mail = surface.mailbox().to(&ada.email).await;
    for part in ["subject", "text", "html"] {
        assert!(text(&mail, part).contains("Ada"), "{part}: {mail}");
    }
    let sent = ada.client.settled(&location).await;
    assert_members(&sent, &json!({"status": "SENT", "attempts": 1}));
    let events = sent["events"].as_array().expect("events").iter();
    let types: Vec<_> = events.clone().map(|event| &event["type"]).collect();
    assert_eq!(types, ["QUEUED", "ATTEMPTED", "SENT"], "{sent}");
    assert!(events.map(|event| text(event, "at")).is_sorted(), "{sent}");
    let etag = ada.client.fetch(&location, 200).await.header("etag");
    let again = ada.client.get(&location).header("if-none-match", &etag);
    assert!(again.send().await.expect(304).body.is_empty());
}

#[tokio::test]
async fn journey_in_one_process_over_sqlite_and_memory() {
    let postern = Standalone::start().await;
    a_day(postern.surface()).await;
    postern.stop().await;
}

#[tokio::test]
async fn journey_in_three_processes_over_postgresql_and_redis() {
    let installation = Installation::start().await;
    a_day(installation.surface()).await;
    assert_documented(&installation).await;
    installation.stop().await;
}
