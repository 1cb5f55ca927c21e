//! A complete user journey through the gateway.

use std::time::Duration;

use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, resume, resume_form, sample, text, welcome};
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
        .post_json("/auth/login", &again)
        .await
        .expect(200)
        .json();
    assert_eq!(surface.person(&ada.email, tokens).await.id, ada.id);
    notify(surface, &ada).await;
}

async fn register(surface: &PublicApi) -> Person {
    let ada = surface.register().await;
    let me = ada.client.get("/auth/me").send().await.expect(200).json();
    assert_eq!(
        (&me["kind"], &me["userId"]),
        (&json!("user"), &json!(ada.id))
    );
    let actor = ada
        .client
        .get(&format!("/actors/{}", ada.id))
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(actor["email"], ada.email, "{actor}");
    assert_eq!(
        (&actor["firstName"], &actor["lastName"]),
        (&json!("Ada"), &json!("Lovelace")),
        "{actor}"
    );
    let found = ada
        .client
        .get(&format!("/actor?actorId={}", ada.id))
        .send()
        .await
        .expect(200)
        .json();
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
    assert_eq!(
        (&stored["sha256"], &stored["size"]),
        (&json!(sha256), &json!(content.len())),
        "{stored}"
    );
    assert_eq!(
        (&stored["candidateId"], &stored["fileName"]),
        (&json!("c-1"), &json!("ada.pdf")),
        "{stored}"
    );
    let location = format!("/resumes/{}", text(&stored, "resumeId"));
    assert_eq!(
        ada.client.get(&location).send().await.expect(200).json(),
        stored
    );
}

async fn social(surface: &PublicApi) {
    let token = surface
        .social_sign_in(&sample("grace"), None)
        .await
        .expect("grace is signed in");
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
        .post_json("/notifications", &welcome(&ada.id))
        .await
        .expect(201);
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
    assert_eq!(
        (&sent["status"], &sent["attempts"]),
        (&json!("SENT"), &json!(1)),
        "{sent}"
    );
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
    let etag = ada
        .client
        .get(&location)
        .send()
        .await
        .expect(200)
        .header("etag");
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
            let record = person.client.get(location).send().await.expect(200).json();
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
    let token = postern
        .surface()
        .social_sign_in(&sample("ada"), None)
        .await
        .expect("ada is signed in");
    let user = postern.surface().exchange(&token).await.expect(200).json();
    assert_eq!(user["user"]["provider"], "development");
    let again = postern.surface().exchange(&token).await;
    again.problem(401, "invalid_temporary_token");
    postern.stop().await;
}
