//! Error responses of the upstreams, on every operation of the contract: each documented status is
//! provoked, and the response is checked against the document.

use std::collections::BTreeSet;

use postern_tests::client::Request;
use postern_tests::http_body::json;
use postern_tests::pools::administrator;
use postern_tests::surface::{resume_form, welcome};
use postern_tests::{Client, Contract, Person, Postern, PublicApi};
use serde_json::Value;

/// Error responses that this installation does not give, with the tests that cover them.
const ELSEWHERE: &[(&str, u16, &str)] = &[
    (
        "confirmRegistration",
        422,
        "contract.rs, with a pool that requires a code",
    ),
    (
        "register",
        401,
        "contract.rs, with a pool that requires a code",
    ),
    (
        "socialLogin",
        404,
        "environment_variables.rs, without a social provider",
    ),
    (
        "socialCallback",
        404,
        "environment_variables.rs, without a social provider",
    ),
    (
        "socialFormCallback",
        404,
        "environment_variables.rs, without a social provider",
    ),
];

/// Statuses of the upstreams' own errors.
const OF_THE_SERVICES: [u16; 7] = [400, 401, 403, 404, 409, 415, 422];

#[tokio::test]
async fn every_operation_gives_its_documented_errors() {
    let postern = Postern::start().await;
    let contract = Contract::fresh();
    let surface = postern.surface().against(contract);
    let ada = surface.register().await;
    let service = surface
        .client()
        .with_token(&postern.service_token("auth").await);
    let admin = surface
        .client()
        .with_token(&postern.token_of_group("admin").await);
    media_types(&ada.client, &service, &admin).await;
    sign_in(&surface).await;
    challenge(&surface).await;
    actors(&ada, &service, &admin).await;
    notifications(&surface, &ada).await;
    let seen = contract.seen();
    let documented = contract.operations().iter().flat_map(|operation| {
        let own = operation
            .responses
            .keys()
            .filter(|status| OF_THE_SERVICES.contains(status));
        // Missing tokens and operations without a JSON body are tested in statuses.rs.
        let reads_a_body = operation.responses.contains_key(&415);
        let own = own.filter(move |status| match status {
            400 => reads_a_body,
            401 => !operation.is_protected,
            _ => true,
        });
        own.map(|status| (operation.id.as_str(), *status))
    });
    let unseen: BTreeSet<_> = documented
        .filter(|(id, status)| !seen.contains(&((*id).to_owned(), *status)))
        .collect();
    let expected: BTreeSet<_> = ELSEWHERE
        .iter()
        .map(|(id, status, _)| (*id, *status))
        .collect();
    assert_eq!(unseen, expected);
    postern.stop().await;
}

/// Sends a wrong content type, a non-object, the example of the document, and variations of it.
async fn media_types(ada: &Client, service: &Client, admin: &Client) {
    for operation in Contract::shared()
        .operations()
        .iter()
        .filter(|one| one.responses.contains_key(&415))
    {
        let client = match operation.id.as_str() {
            "registerActor" | "createCandidate" | "createJobSpec" => service,
            "putFeature" => admin,
            _ => ada,
        };
        let path = operation.path.replace(['{', '}'], "");
        let request = || client.request(operation.method.clone(), &path);
        let _ = request()
            .body("text/plain", "{}")
            .send()
            .await
            .problem(415, "unsupported_media_type");
        let readable = if operation.id == "createResume" {
            "multipart/form-data; boundary=x"
        } else {
            "application/json"
        };
        let _ = request()
            .body(readable, "[]")
            .send()
            .await
            .problem(400, "invalid_request");
        if let Some(schema) = operation.json_body() {
            bodies(request, schema).await;
        }
    }
}

/// The example is accepted, each required field is required, and unknown fields are rejected. Not
/// applicable to objects with arbitrary members.
async fn bodies(request: impl Fn() -> Request, media: &Value) {
    let schema = Contract::shared().resolve(&media["schema"]);
    let named = media["examples"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, example)| &example["value"]);
    let examples: Vec<&Value> = media.get("example").into_iter().chain(named).collect();
    for example in &examples {
        let good = request().json(example).send().await;
        assert_ne!(
            good.status.as_u16(),
            400,
            "the document's example: {}",
            good.text()
        );
    }
    let example = examples[0];
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let mut without = example.clone();
        without.as_object_mut().expect("an object").remove(name);
        let refusal = request()
            .json(&without)
            .send()
            .await
            .problem(400, "invalid_request");
        assert!(
            refusal.pointers().contains(&format!("/{name}")),
            "{name}: {}",
            refusal.body
        );
    }
    for name in properties.keys().map(String::as_str).chain(["surprise"]) {
        let mut with = example.clone();
        with[name] = json!(true);
        let refusal = request()
            .json(&with)
            .send()
            .await
            .problem(400, "invalid_request");
        assert!(
            refusal
                .pointers()
                .iter()
                .any(|at| at.starts_with(&format!("/{name}"))),
            "{name}: {}",
            refusal.body
        );
    }
}

async fn refuses(client: &Client, path: &str, body: &Value, status: u16, code: &str) {
    let _ = client.post_json(path, body).await.problem(status, code);
}

async fn sign_in(surface: &PublicApi) {
    let client = surface.client();
    let stranger = json!({"email": "nobody@example.com", "password": "Wrong horse battery 9"});
    refuses(client, "/auth/login", &stranger, 401, "invalid_credentials").await;
    refuses(
        client,
        "/api/session",
        &stranger,
        401,
        "invalid_credentials",
    )
    .await;
    let weak = json!({"email": "weak@example.com", "password": "short"});
    refuses(client, "/auth/register", &weak, 422, "weak_password").await;
    let refresh = json!({"refreshToken": "v1.none.none"});
    refuses(
        client,
        "/auth/tokens/refresh",
        &refresh,
        401,
        "invalid_refresh_token",
    )
    .await;
    refuses(
        client,
        "/auth/refresh-user-token",
        &refresh,
        401,
        "invalid_refresh_token",
    )
    .await;
    let exchange = json!({"temporaryToken": "unknown"});
    refuses(
        client,
        "/auth/tokens/exchange",
        &exchange,
        401,
        "invalid_temporary_token",
    )
    .await;
    let confirm =
        json!({"session": "v1.none.none", "code": "123456", "password": "Correct horse battery 9"});
    refuses(
        client,
        "/auth/register/confirm",
        &confirm,
        401,
        "invalid_challenge",
    )
    .await;
    let reset = json!({"email": "nobody@example.com", "code": "000000", "newPassword": "Correct horse battery 9"});
    refuses(client, "/auth/password/reset", &reset, 422, "invalid_code").await;
    let _ = client
        .denied(
            "/auth/social/login?code_challenge=short",
            400,
            "invalid_request",
        )
        .await;
    let _ = surface.social_token("ada").await;
    webhooks(client).await;
}

async fn webhooks(client: &Client) {
    let page = client.get("/unsubscriptions?token=none").send().await;
    let _ = page.problem(401, "invalid_webhook_signature");
    let click = client
        .post("/unsubscriptions?token=none")
        .body("text/plain", "List-Unsubscribe=One-Click");
    let _ = click.send().await.problem(401, "invalid_webhook_signature");
    let webhook = client
        .post("/webhooks/twilio")
        .body("application/json", "{}")
        .send()
        .await;
    let _ = webhook.problem(401, "invalid_webhook_signature");
}

/// A user created by an administrator must set a new password first.
async fn challenge(surface: &PublicApi) {
    let email = "dora@example.com";
    let session = first_sign_in(surface, email).await;
    let weak = json!({"session": session, "newPassword": "short"});
    refuses(
        surface.client(),
        "/auth/challenge",
        &weak,
        422,
        "weak_password",
    )
    .await;
    let made_up = json!({"session": "v1.none.none", "newPassword": "Correct horse battery 9"});
    refuses(
        surface.client(),
        "/auth/challenge",
        &made_up,
        401,
        "invalid_challenge",
    )
    .await;
}

async fn first_sign_in(surface: &PublicApi, email: &str) -> String {
    let (admin, identity) = administrator(surface).await;
    let password = "Given horse battery 7";
    let create = admin
        .admin_create_user()
        .user_pool_id(&identity.actor.pool_id)
        .username(email);
    let create = create
        .temporary_password(password)
        .message_action("SUPPRESS".into());
    Box::pin(create.send())
        .await
        .expect("the pool makes a user");
    let login = json!({"email": email, "password": password});
    let asked = surface.client().post_json("/auth/login", &login).await;
    let asked = asked.problem(401, "challenge_required");
    asked.body["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned()
}

async fn actors(ada: &Person, service: &Client, admin: &Client) {
    let actor = |email: &str| json!({"actorId": "a-1", "email": email, "profile": {}});
    let _ = service
        .posted("/actors/register", &actor("one@example.com"), 201)
        .await;
    refuses(
        service,
        "/actors/register",
        &actor("other@example.com"),
        422,
        "validation_failed",
    )
    .await;
    for path in [
        "/actors/nobody",
        "/actors/register",
        "/resumes/none",
        "/notifications/none",
    ] {
        let _ = ada.client.denied(path, 404, "not_found").await;
    }
    for path in ["/candidates/none", "/job-specs/none"] {
        let _ = service.denied(path, 404, "not_found").await;
    }
    for path in ["/candidates", "/job-specs"] {
        refuses(&ada.client, path, &json!({}), 403, "insufficient_scope").await;
    }
    for path in ["/candidates", "/candidates/none"] {
        let refused = ada.client.get(path).send().await;
        let _ = refused.problem(403, "insufficient_scope");
    }
    let settings = json!({"on": true});
    let nameless = admin
        .put("/admin/features/no%20name")
        .json(&settings)
        .send()
        .await;
    let _ = nameless.problem(404, "not_found");
    let feature = ada
        .client
        .put("/admin/features/beta")
        .json(&settings)
        .send()
        .await;
    let _ = feature.problem(403, "insufficient_scope");
    let form = resume_form("c-1", b"");
    let _ = ada
        .client
        .post("/resumes")
        .multipart(form)
        .send()
        .await
        .problem(422, "validation_failed");
}

async fn notifications(surface: &PublicApi, ada: &Person) {
    let client = &ada.client;
    let other = json!({"channel": "email", "recipient": {"actorId": "another"}, "template": "welcome",
        "variables": {"name": "Ada"}});
    refuses(
        client,
        "/notifications",
        &other,
        403,
        "recipient_not_allowed",
    )
    .await;
    let mut urgent = welcome(&ada.id);
    urgent["priority"] = json!("HIGH");
    refuses(
        client,
        "/notifications",
        &urgent,
        403,
        "priority_not_allowed",
    )
    .await;
    let nameless =
        json!({"channel": "email", "recipient": {"actorId": ada.id}, "template": "welcome"});
    refuses(
        client,
        "/notifications",
        &nameless,
        422,
        "validation_failed",
    )
    .await;
    refuses(
        client,
        "/notification-batches",
        &json!({"notifications": []}),
        422,
        "validation_failed",
    )
    .await;
    let unknown = client.delete("/notifications/none").send().await;
    let _ = unknown.problem(404, "not_found");
    let keyed = |body: &Value| {
        client
            .post("/notifications")
            .header("idempotency-key", "one")
            .json(body)
            .send()
    };
    let sent = keyed(&welcome(&ada.id))
        .await
        .expect(201)
        .header("location");
    let mut another = welcome(&ada.id);
    another["variables"]["name"] = json!("Grace");
    let _ = keyed(&another).await.problem(409, "idempotency_key_reused");
    // The mail shows that the provider has been called.
    let _ = surface.mailbox().to(&ada.email).await;
    let _ = client
        .delete(&sent)
        .send()
        .await
        .problem(409, "already_attempted");
}
