//! Sends the examples of the OpenAPI document unchanged and expects success. Only values that the
//! service issued before (a session, token, code or id) are replaced.

use std::collections::BTreeSet;

use postern_tests::http_body::json;
use postern_tests::mail_token::{UNSUBSCRIBE, mail_token};
use postern_tests::pools::create_user_with_temporary_password;
use postern_tests::surface::{resume_form, sample, text};
use postern_tests::{Answer, Client, Contract, Postern, PublicApi};
use serde_json::Value;

/// The examples of the document, and those that have been sent.
struct Examples {
    contract: &'static Contract,
    sent: BTreeSet<String>,
}

impl Examples {
    /// Returns the example body of an operation; `name` selects one of several.
    fn body(&mut self, operation: &str, name: Option<&str>) -> Value {
        self.sent.insert(operation.to_owned());
        let found = self
            .contract
            .operations()
            .iter()
            .find(|known| known.id == operation);
        let media = found
            .and_then(|operation| operation.json_body())
            .expect("it reads JSON");
        let example = match name {
            Some(name) => &media["examples"][name]["value"],
            None => &media["example"],
        };
        assert!(example.is_object(), "{operation} has no example {name:?}");
        example.clone()
    }

    /// Returns the example body with members that only the service can issue.
    fn with(&mut self, operation: &str, given: &[(&str, &str)]) -> Value {
        let mut body = self.body(operation, None);
        for (member, value) in given {
            assert!(
                body[*member].is_string(),
                "{operation}: {body} has no {member}"
            );
            body[*member] = json!(value);
        }
        body
    }

    /// Returns the example of a parameter.
    fn parameter(&self, path: &str, method: &str, name: &str) -> String {
        let item = &self.contract.document()["paths"][path];
        let all = [&item["parameters"], &item[method]["parameters"]];
        let mut all = all.into_iter().filter_map(Value::as_array).flatten();
        let found = all
            .find(|parameter| parameter["name"] == name)
            .expect("the parameter");
        found["example"].as_str().expect("an example").to_owned()
    }
}

async fn post(client: &Client, path: &str, body: &Value, status: u16) -> Answer {
    client.post_json(path, body).await.expect(status)
}

/// Returns the code of the last mail to an address.
async fn code(surface: &PublicApi, email: &str) -> String {
    let mail = surface.mailbox().to(email).await;
    let mut words = text(&mail, "text").split(|c: char| !c.is_ascii_digit());
    words
        .find(|word| word.len() == 8)
        .expect("a code")
        .to_owned()
}

#[tokio::test]
async fn every_example_is_accepted() {
    let postern = Postern::start().await;
    let mut examples = Examples {
        contract: Contract::shared(),
        sent: BTreeSet::new(),
    };
    let surface = postern.surface();
    passwords(surface, &mut examples).await;
    challenge(surface, &mut examples).await;
    social(surface, &mut examples).await;
    actors(&postern, &mut examples).await;
    notifications(&postern, &mut examples).await;
    let shown = examples
        .contract
        .operations()
        .iter()
        .filter(|operation| operation.json_body().is_some());
    let shown: BTreeSet<String> = shown.map(|operation| operation.id.clone()).collect();
    assert_eq!(
        examples.sent, shown,
        "an operation's example is not sent here"
    );
    postern.stop().await;
}

async fn passwords(surface: &PublicApi, examples: &mut Examples) {
    let client = surface.client();
    let _ = post(
        client,
        "/auth/register",
        &examples.body("register", None),
        201,
    )
    .await;
    let login = examples.body("login", None);
    let tokens = post(client, "/auth/login", &login, 200).await.json();
    let _ = post(
        client,
        "/api/session",
        &examples.body("session", Some("password")),
        200,
    )
    .await;
    let mut refresh = text(&tokens, "refreshToken").to_owned();
    let mut renewed = examples.body("session", Some("refresh"));
    renewed["refreshToken"] = json!(refresh);
    refresh = post(client, "/api/session", &renewed, 200)
        .await
        .string("/refreshToken");
    for (operation, path) in [
        ("refresh", "/auth/tokens/refresh"),
        ("refreshUserToken", "/auth/refresh-user-token"),
    ] {
        let body = examples.with(operation, &[("refreshToken", &refresh)]);
        refresh = post(client, path, &body, 200).await.string("/refreshToken");
    }
    let _ = post(
        client,
        "/auth/logout",
        &examples.with("logout", &[("refreshToken", &refresh)]),
        204,
    )
    .await;
    let forgot = examples.body("forgotPassword", None);
    let _ = post(client, "/auth/password/forgot", &forgot, 204).await;
    let code = code(surface, text(&forgot, "email")).await;
    let reset = examples.with("resetPassword", &[("code", &code)]);
    let _ = post(client, "/auth/password/reset", &reset, 204).await;
    // The pool of this installation requires no code at registration, so the session is rejected,
    // not the example.
    let confirm = examples.body("confirmRegistration", None);
    let refused = client.post_json("/auth/register/confirm", &confirm).await;
    let _ = refused.problem(401, "invalid_challenge");
    assert_eq!(
        confirm["password"], login["password"],
        "the pool accepts the password"
    );
}

async fn challenge(surface: &PublicApi, examples: &mut Examples) {
    let (email, first) = ("dora@example.com", "Given horse battery 7");
    create_user_with_temporary_password(surface, email, first).await;
    let login = json!({"email": email, "password": first});
    let asked = surface
        .client()
        .post_json("/auth/login", &login)
        .await
        .problem(401, "challenge_required");
    let session = asked.body["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned();
    let answer = examples.with("answerChallenge", &[("session", &session)]);
    let _ = post(surface.client(), "/auth/challenge", &answer, 200).await;
}

async fn social(surface: &PublicApi, examples: &mut Examples) {
    let token = surface
        .social_sign_in(&sample("ada"), None)
        .await
        .expect("ada is signed in");
    let body = examples.with("exchange", &[("temporaryToken", &token)]);
    let _ = post(surface.client(), "/auth/tokens/exchange", &body, 200).await;
}

async fn actors(postern: &Postern, examples: &mut Examples) {
    let surface = postern.surface();
    let service = surface
        .client()
        .with_token(&postern.service_token("auth").await);
    let actor = examples.body("registerActor", None);
    let _ = post(&service, "/actors/register", &actor, 201).await;
    let id = examples.parameter("/actors/{id}", "get", "id");
    assert_eq!(actor["actorId"], id.as_str());
    let _ = service
        .get(&format!("/actors/{id}"))
        .send()
        .await
        .expect(200);
    let id = examples.parameter("/actor", "get", "actorId");
    let _ = service
        .get(&format!("/actor?actorId={id}"))
        .send()
        .await
        .expect(200);
    let admin = surface
        .client()
        .with_token(&postern.token_of_group("admin").await);
    let feature = examples.parameter("/admin/features/{featureName}", "put", "featureName");
    let settings = examples.body("putFeature", None);
    let _ = admin
        .put(&format!("/admin/features/{feature}"))
        .json(&settings)
        .send()
        .await
        .expect(200);
    for (operation, path) in [
        ("createCandidate", "/candidates"),
        ("createJobSpec", "/job-specs"),
    ] {
        let _ = post(&service, path, &examples.body(operation, None), 201).await;
    }
    let form = &examples.contract.document()["paths"]["/resumes"]["post"]["requestBody"];
    let shown = &form["content"]["multipart/form-data"]["example"];
    let form = resume_form(text(shown, "candidateId"), text(shown, "resume").as_bytes());
    let _ = admin
        .post("/resumes")
        .multipart(form)
        .send()
        .await
        .expect(201);
}

async fn notifications(postern: &Postern, examples: &mut Examples) {
    let surface = postern.surface();
    let service = surface
        .client()
        .with_token(&postern.service_token("auth").await);
    let person = postern.verified_person().await;
    let preferences = examples.body("putPreferences", None);
    let put = person.client.put("/notification-preferences");
    let _ = put.json(&preferences).send().await.expect(200);
    let one = examples.body("createNotification", None);
    let created = post(&service, "/notifications", &one, 201).await;
    let batch = examples.body("createNotifications", None);
    let results = post(&service, "/notification-batches", &batch, 200)
        .await
        .json();
    for result in results["results"].as_array().expect("results") {
        assert_eq!(result["status"], 201, "{results}");
    }
    let id = created.string("/notificationId");
    let shown = examples.parameter("/notifications/{notificationId}", "get", "notificationId");
    assert_eq!(shown.len(), id.len(), "{shown}");
    let token = mail_token(
        surface.env("NOTIFY_TOKEN_KEY"),
        UNSUBSCRIBE,
        &id,
        text(&one["recipient"], "email"),
    );
    let shown = examples.parameter("/unsubscriptions", "post", "token");
    assert_eq!(shown.len(), token.len(), "{shown}");
    let form = &examples.contract.document()["paths"]["/unsubscriptions"]["post"]["requestBody"];
    let shown = &form["content"]["application/x-www-form-urlencoded"]["example"];
    let fields: Vec<(&str, &str)> = shown
        .as_object()
        .expect("fields")
        .iter()
        .map(|(name, _)| (name.as_str(), text(shown, name)))
        .collect();
    let click = surface
        .client()
        .post(&format!("/unsubscriptions?token={token}"));
    let _ = click.form(&fields).send().await.expect(204);
}
