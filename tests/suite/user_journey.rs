//! A complete user journey through the gateway.

use std::time::Duration;

use postern_core::testing::assert_members;
use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, resume, resume_form, text, welcome};
use postern_tests::{Person, Postern, PublicApi, Split};
use serde_json::Value;

/// All steps in the order of a user.
pub(crate) async fn a_day(surface: &PublicApi) {
    let ada = register(surface).await;
    upload(&ada).await;
    social(surface).await;
    refresh(surface, &ada).await;
    let again = json!({"email": ada.email, "password": PASSWORD});
    let tokens = surface
        .client()
        .posted("/auth/login", &again, 200)
        .await
        .json();
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
    let stored = ada
        .client
        .post("/resumes")
        .multipart(resume_form("c-1", &content))
        .send()
        .await
        .expect(201);
    let stored = stored.json();
    assert_members(&stored, &json!({"sha256": sha256, "size": content.len()}));
    assert_members(
        &stored,
        &json!({"candidateId": "c-1", "fileName": "ada.pdf"}),
    );
    let location = format!("/resumes/{}", text(&stored, "resumeId"));
    assert_eq!(ada.client.read(&location).await, stored);
}

async fn social(surface: &PublicApi) {
    let token = surface.social_token("grace").await;
    let exchanged = surface.exchange(&token).await.expect(200).json();
    assert_eq!(
        exchanged["user"]["email"], "grace.social@example.com",
        "{exchanged}"
    );
    assert_eq!(exchanged["user"]["name"], "Grace Hopper", "{exchanged}");
    let tokens = exchanged["tokens"].clone();
    assert!(
        tokens.is_object(),
        "the local pool gives social users tokens: {exchanged}"
    );
    let grace = surface.person("grace.social@example.com", tokens).await;
    assert_eq!(exchanged["user"]["userId"], grace.id.as_str());
    let second = surface.exchange(&token).await;
    second.problem(401, "invalid_temporary_token");
}

async fn refresh(surface: &PublicApi, ada: &Person) {
    let token = text(&ada.tokens, "refreshToken");
    let renewed = surface.refresh(token).await.expect(200).json();
    assert_eq!(surface.person(&ada.email, renewed).await.id, ada.id);
}

async fn notify(surface: &PublicApi, ada: &Person) {
    let created = ada
        .client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    let location = created.header("location");
    assert_eq!(created.string("/status"), "QUEUED");
    assert_eq!(
        location,
        format!("/notifications/{}", created.string("/notificationId"))
    );
    let mail = surface.mailbox().to(&ada.email).await;
    assert!(text(&mail, "subject").contains("Ada"), "{mail}");
    assert!(
        text(&mail, "text").contains("Ada") && text(&mail, "html").contains("Ada"),
        "{mail}"
    );
    let sent = settled(ada, &location).await;
    assert_members(&sent, &json!({"status": "SENT", "attempts": 1}));
    let events: Vec<_> = sent["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| &event["type"])
        .collect();
    assert_eq!(events, ["QUEUED", "ATTEMPTED", "SENT"], "{sent}");
    let times: Vec<_> = sent["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| text(event, "at"))
        .collect();
    assert!(times.is_sorted(), "{sent}");
    let etag = ada.client.fetch(&location, 200).await.header("etag");
    let unchanged = ada
        .client
        .get(&location)
        .header("if-none-match", &etag)
        .send()
        .await
        .expect(304);
    assert!(unchanged.body.is_empty());
}

/// Waits until the result of a delivered mail is recorded, for at most a minute.
async fn settled(person: &Person, location: &str) -> Value {
    let asking = async {
        loop {
            let record = person.client.read(location).await;
            if record["status"] != "QUEUED" {
                return record;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking)
        .await
        .expect("the notification leaves QUEUED")
}

#[tokio::test]
async fn journey_in_one_process_over_sqlite_and_memory() {
    let postern = Postern::start().await;
    a_day(postern.surface()).await;
    postern.stop().await;
}

#[tokio::test]
async fn journey_in_three_processes_over_postgresql_and_redis() {
    let split = Split::start().await;
    a_day(split.surface()).await;
    split.stop().await;
}

#[tokio::test]
async fn temporary_token_is_exchanged_once() {
    let postern = Postern::start().await;
    let token = postern.surface().social_token("ada").await;
    let user = postern.surface().exchange(&token).await.expect(200).json();
    assert_eq!(user["user"]["provider"], "development");
    let again = postern.surface().exchange(&token).await;
    again.problem(401, "invalid_temporary_token");
    postern.stop().await;
}
