//! Error responses, on every operation of the contract: each documented status is provoked, and the
//! response is checked against the document.

use std::collections::BTreeSet;

use http::Method;
use postern_core::config::Env;
use postern_harness::client::Request;
use postern_harness::contract::Operation;
use postern_harness::json;
use postern_harness::pools::create_user_with_temporary_password;
use postern_harness::public_api::{text, upload, welcome};
use postern_harness::{BrokenOrigin, Client, Contract, Gateway};
use postern_harness::{Person, PublicApi, RawClient, Standalone};
use serde_json::Value;

/// Error responses that this installation does not give, with the tests that cover them.
const ELSEWHERE: &[(&str, u16, &str)] = &[
    ("confirmRegistration", 422, WITH_CODE),
    ("register", 401, WITH_CODE),
    ("socialLogin", 404, WITHOUT_PROVIDER),
    ("socialCallback", 404, WITHOUT_PROVIDER),
    ("socialFormCallback", 404, WITHOUT_PROVIDER),
];
const WITH_CODE: &str = "webhook.rs, with a pool that requires a code";
const WITHOUT_PROVIDER: &str = "environment_variables.rs, without a social provider";

/// The answer to a request for another host than that of the TLS handshake
/// (`client_certificates.rs` of the gateway).
const OF_TLS: u16 = 421;

/// Operations of the development services, which do not point at the whole body.
const OF_DEVELOPMENT: [&str; 4] = [
    "registerActor",
    "createCandidate",
    "createJobSpec",
    "putFeature",
];

/// Errors before an upstream is contacted, of every operation that documents them: what follows the
/// path, further headers, and the answer. The rest of a line with another version becomes a header.
/// A request that must be answered with 401 has no token.
const OF_HEADS: [(&str, &str, u16, &str); 6] = [
    ("", "Connection: authorization\r\n", 400, "invalid_header"),
    ("", "", 401, "authentication_required"),
    ("", "Content-Length: 99999999999\r\n", 413, "body_too_large"),
    ("?a={long}", "", 414, "target_too_long"),
    ("", "X-Large: {large}\r\n", 431, "head_too_large"),
    (
        " HTTP/1.2\r\nX-Rest:",
        "",
        505,
        "http_version_not_supported",
    ),
];

/// Upstreams of every operation, and what the gateway answers.
const OF_UPSTREAMS: [(BrokenOrigin, u16, &str); 4] = [
    (BrokenOrigin::Writes(FAILED), 500, "internal_error"),
    (
        BrokenOrigin::Writes(b"ceci n'est pas HTTP\r\n\r\n"),
        502,
        "upstream_failed",
    ),
    (
        BrokenOrigin::RefusesConnections,
        503,
        "upstream_unavailable",
    ),
    (BrokenOrigin::NeverResponds, 504, "upstream_timeout"),
];

/// An upstream's own error response, which is passed on unchanged.
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/problem+json\r\nCache-Control: \
    no-store\r\nContent-Length: 129\r\n\r\n{\"type\":\"https://postern.dev/problems/internal-error\",\"title\":\"It failed\",\
    \"status\":500,\"code\":\"internal_error\",\"requestId\":\"r-1\"}";

/// Bodies that are no JSON object.
const NO_OBJECTS: [&str; 12] = [
    "",
    "{",
    "{\"email\":}",
    "{} {}",
    "[1,]",
    "nul",
    "\u{feff}{}",
    "{\"a\":\"\\ud800\"}",
    "[]",
    "\"text\"",
    "7",
    "null",
];

/// Who asks, the request, its body, the answer, and the pointers of its errors if they are compared.
/// `{ada}` is the id of the user, `{session}` that of a challenge.
const REFUSALS: &str = r#"
anyone | POST /auth/login | {"email": "nobody@example.com", "password": "Wrong horse battery 9"} | 401 invalid_credentials
anyone | POST /auth/login | {"email": 7, "paswort": "x"} | 400 invalid_request | /email /password /paswort
anyone | POST /auth/login | {"email": "a@b.test", "password": "x", "password": "y"} | 400 invalid_request | /password
anyone | POST /auth/register | {"email": "no", "password": null, "profile": {"firstName": [], "phone": 5}} | 400 invalid_request
anyone | POST /auth/register | {"email": "weak@example.com", "password": "short"} | 422 weak_password
anyone | POST /auth/register | {"email": "eve@example.com", "password": "Correct horse battery 9", "profile": {"phoneVerified": true, "emailVerified": true}} | 422 validation_failed | /profile/phoneVerified /profile/emailVerified
anyone | POST /api/session | {"email": "nobody@example.com", "password": "Wrong horse battery 9"} | 401 invalid_credentials
anyone | POST /auth/tokens/refresh | {"refreshToken": "v1.none.none"} | 401 invalid_refresh_token
anyone | POST /auth/refresh-user-token | {"refreshToken": "v1.none.none"} | 401 invalid_refresh_token
anyone | POST /auth/tokens/exchange | {"temporaryToken": "unknown"} | 401 invalid_temporary_token
anyone | POST /auth/register/confirm | {"session": "v1.none.none", "code": "123456", "password": "Correct horse battery 9"} | 401 invalid_challenge
anyone | POST /auth/password/reset | {"email": "nobody@example.com", "code": "000000", "newPassword": "Correct horse battery 9"} | 422 invalid_code
anyone | GET /auth/social/login?code_challenge=short | | 400 invalid_request
anyone | POST /auth/challenge | {"session": "{session}", "newPassword": "short"} | 422 weak_password
anyone | POST /auth/challenge | {"session": "v1.none.none", "newPassword": "Correct horse battery 9"} | 401 invalid_challenge
anyone | GET /unsubscriptions?token=none | | 401 invalid_webhook_signature
anyone | POST /webhooks/twilio | {} | 401 invalid_webhook_signature
service | POST /actors/register | {"actorId": "a-1", "email": "other@example.com", "profile": {}} | 422 validation_failed
service | GET /candidates/none | | 404 not_found
service | GET /job-specs/none | | 404 not_found
service | PUT /admin/features/beta | {"on": true} | 401 user_required
other | POST /actors/register | {"actorId": "a-2", "email": "new@example.com", "profile": {}} | 401 service_not_allowed
admin | PUT /admin/features/no%20name | {"on": true} | 404 not_found
admin | POST /parse/resume | {} | 404 not_found
admin | POST /admin/toggle | {} | 404 not_found
admin | POST /candidate | {} | 404 not_found
admin | POST /resume | {} | 404 not_found
admin | POST /job-spec | {} | 404 not_found
ada | POST /actors/register | {"actorId": "a-2", "email": "new@example.com", "profile": {}} | 401 service_required
ada | PUT /admin/features/beta | {"on": true} | 403 insufficient_scope
ada | POST /candidates | {} | 403 insufficient_scope
ada | POST /job-specs | {} | 403 insufficient_scope
ada | GET /candidates | | 403 insufficient_scope
ada | GET /candidates/none | | 403 insufficient_scope
ada | GET /actors/nobody | | 404 not_found
ada | GET /actors/register | | 404 not_found
ada | GET /resumes/none | | 404 not_found
ada | GET /notifications/none | | 404 not_found
ada | DELETE /notifications/none | | 404 not_found
ada | GET / | | 404 not_found
ada | GET /auth | | 404 not_found
ada | GET /auth/login/ | | 404 not_found
ada | GET /actors | | 404 not_found
ada | GET /notifications/1/2 | | 404 not_found
ada | GET /admin/features | | 404 not_found
ada | POST /notifications | {"channel": "fax", "recipient": {"actorId": "{ada}"}, "priority": "URGENT", "sendAt": "soon"} | 400 invalid_request | /channel /priority /sendAt /template
ada | POST /notifications | {"channel": "email", "recipient": {"actorId": "another"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notifications | {"channel": "email", "recipient": {"actorId": "{ada}"}, "template": "welcome", "variables": {"name": "Ada"}, "priority": "HIGH"} | 403 priority_not_allowed
ada | POST /notifications | {"channel": "email", "recipient": {"actorId": "{ada}"}, "template": "welcome"} | 422 validation_failed | /variables/name
ada | POST /notifications | {"channel": "email", "recipient": {"actorId": "{ada}"}, "template": "no-such-template"} | 422 unknown_template | /template
ada | POST /notifications | {"channel": "sms", "recipient": {"actorId": "another"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notifications | {"channel": "push", "recipient": {"actorId": "another"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notifications | {"channel": "email", "recipient": {"email": "victim@b.test"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notifications | {"channel": "sms", "recipient": {"phone": "+491701234567"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notifications | {"channel": "push", "recipient": {"deviceToken": "t"}, "template": "welcome", "variables": {"name": "Ada"}} | 403 recipient_not_allowed
ada | POST /notification-batches | {"notifications": []} | 422 validation_failed
"#;

/// The clients of an installation.
struct Callers {
    ada: Person,
    service: Client,
    other: Client,
    admin: Client,
    anyone: Client,
}

impl Callers {
    async fn of(postern: &Standalone, surface: &PublicApi) -> Self {
        let anyone = surface.client().clone();
        Self {
            ada: surface.register().await,
            service: anyone.with_token(&postern.service_token("auth").await),
            other: anyone.with_token(&postern.service_token("document").await),
            admin: anyone.with_token(&postern.token_of_group("admin").await),
            anyone,
        }
    }

    fn named(&self, name: &str) -> &Client {
        match name {
            "ada" => &self.ada.client,
            "service" => &self.service,
            "other" => &self.other,
            "admin" => &self.admin,
            _ => &self.anyone,
        }
    }

    /// Returns a client whose token an operation accepts.
    fn accepted_by(&self, operation: &Operation) -> &Client {
        match operation.id.as_str() {
            _ if !operation.is_protected => &self.anyone,
            "registerActor" | "getActor" | "listCandidates" | "createCandidate"
            | "getCandidate" | "createJobSpec" => &self.service,
            "putFeature" => &self.admin,
            _ => &self.ada.client,
        }
    }
}

#[tokio::test]
async fn every_operation_gives_its_documented_errors() {
    let postern = Standalone::start().await;
    let contract = Contract::fresh();
    let surface = postern.surface().against(contract);
    let callers = Callers::of(&postern, &surface).await;
    errors_of_the_gateway(contract, &callers, &surface).await;
    media_types(&callers).await;
    let actor = json!({"actorId": "a-1", "email": "one@example.com", "profile": {}});
    let service = &callers.service;
    let _ = service.posted("/actors/register", &actor, 201).await;
    let session = first_sign_in(&surface).await;
    for row in REFUSALS.trim().lines() {
        let row = row.replace("{ada}", &callers.ada.id);
        refuse(&callers, &row.replace("{session}", &session)).await;
    }
    forms(&callers).await;
    foreign_records(&surface, &callers.ada).await;
    pointers(&callers.ada.client).await;
    idempotency_keys(&surface, &callers.ada).await;
    kinds_of_tokens(&surface, &callers).await;
    let unseen = contract.unseen().into_iter();
    let is_error = |(_, status): &(&str, u16)| *status >= 400 && *status != OF_TLS;
    let unseen: BTreeSet<_> = unseen.filter(is_error).collect();
    let elsewhere = ELSEWHERE.iter().map(|(id, status, _)| (*id, *status));
    assert_eq!(unseen, elsewhere.collect::<BTreeSet<_>>());
    postern.stop().await;
}

/// Provokes the errors of the gateway itself, with gateways whose upstreams fail.
async fn errors_of_the_gateway(contract: &Contract, callers: &Callers, surface: &PublicApi) {
    let env = surface.environment().clone().into_iter();
    let env: Env = env
        .filter(|(name, _)| !name.starts_with("POSTERN_"))
        .collect();
    let away = BrokenOrigin::RefusesConnections.start().await;
    let gateway = Gateway::start(&Gateway::config(away), &env).await;
    let (long, large) = ("a".repeat(10_000), "a".repeat(70_000));
    for (rest, header, status, code) in OF_HEADS {
        let (rest, header) = (
            rest.replace("{long}", &long),
            header.replace("{large}", &large),
        );
        let request = [&*rest, &*header, ""];
        provoke(contract, callers, &gateway, request, (status, code)).await;
    }
    gateway.stop().await;
    let limit = "requests = 1\nper = \"1h\"\nburst = 1\n";
    let limited = Gateway::config(away).replace_table("limits.address", limit);
    let gateway = Gateway::start(&limited, &env).await;
    let _within_the_limit = gateway.client().fetch("/", 401).await;
    let (plain, limit) = (["", "", "{}"], (429, "rate_limited"));
    provoke(contract, callers, &gateway, plain, limit).await;
    gateway.stop().await;
    for (origin, status, code) in OF_UPSTREAMS {
        let address = origin.start().await;
        let mut file = Gateway::config(address);
        if status == 504 {
            let keys = format!(
                "addresses = [\"{address}\"]\nconnect_timeout = \"200ms\"\nread_timeout = \"50ms\"\n"
            );
            for name in ["auth", "notify", "actor", "document", "identity-pool"] {
                file = file.replace_table(&format!("upstream.{name}"), &keys);
            }
        }
        let gateway = Gateway::start(&file, &env).await;
        provoke(contract, callers, &gateway, plain, (status, code)).await;
        gateway.stop().await;
    }
}

/// Sends a request to every operation that documents a status, with what follows its path, further
/// headers and a body, and asserts the answer.
async fn provoke(
    contract: &Contract,
    callers: &Callers,
    gateway: &Gateway,
    [rest, more, body]: [&str; 3],
    (status, code): (u16, &str),
) {
    for operation in &contract.operations {
        let is_own = status != 401 || operation.is_protected;
        if !operation.responses.contains_key(&status) || !is_own {
            continue;
        }
        let (method, path) = (&operation.method, operation.sample_path());
        let token = callers.accepted_by(operation).token();
        let token = token.filter(|_| status != 401);
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let body = if *method == Method::GET { "" } else { body };
        let has_length = *method == Method::GET || more.contains("Content-Length");
        let length = (!has_length).then(|| format!("Content-Length: {}\r\n", body.len()));
        let (token, length) = (token.unwrap_or_default(), length.unwrap_or_default());
        let head = "Host: localhost\r\nContent-Type: application/json\r\n";
        let line = format!("{method} {path}{rest} HTTP/1.1\r\n");
        let request = format!("{line}{head}{length}{token}{more}\r\n{body}");
        let answer = RawClient::send(gateway.client().address(), request.as_bytes()).await;
        contract.assert_conforms(method, &path, &answer);
        let refusal = answer.problem(status, code);
        // No error is named where no token was sent.
        let challenge = refusal.headers.get("www-authenticate");
        let is_plain = challenge.is_some_and(|it| it == "Bearer");
        assert!(status != 401 || is_plain, "{path}: {challenge:?}");
    }
}

/// Sends the request of a row and asserts its answer.
async fn refuse(callers: &Callers, row: &str) {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [who, request, body, answer, ..] = cells[..] else {
        panic!("{row}")
    };
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let method = method.parse().expect("a method");
    let request = callers.named(who).request(method, path);
    let request = match body.is_empty() {
        true => request,
        false => request.body("application/json", body.to_owned()),
    };
    let (status, code) = answer.split_once(' ').expect("a status and a code");
    let refusal = request.send().await;
    let refusal = refusal.problem(status.parse().expect("a status"), code);
    if let Some(pointers) = cells.get(4) {
        refusal.assert_pointers(&pointers.split(' ').collect::<Vec<_>>());
    }
}

/// Sends wrong content types, what is no object, the example of the document, and variations of it.
async fn media_types(callers: &Callers) {
    let operations = Contract::shared().operations.iter();
    for operation in operations.filter(|one| one.responses.contains_key(&415)) {
        let client = match operation.is_protected {
            true => callers.accepted_by(operation),
            false => &callers.ada.client,
        };
        let path = operation.sample_path();
        let request = || client.request(operation.method.clone(), &path);
        for other in ["text/plain", "application/jsonp"] {
            let refused = request().body(other, "{}").send().await;
            refused.problem(415, "unsupported_media_type");
        }
        let Some(schema) = &operation.json_body else {
            let readable = match operation.id.as_str() {
                "createResume" => "multipart/form-data; boundary=x",
                _ => "application/json",
            };
            let refused = request().body(readable, "[]").send().await;
            refused.problem(400, "invalid_request");
            continue;
        };
        for body in NO_OBJECTS {
            let refused = request().body("application/json", body).send().await;
            let refused = refused.problem(400, "invalid_request");
            if !OF_DEVELOPMENT.contains(&operation.id.as_str()) {
                refused.assert_pointers(&[""]);
            }
        }
        bodies(request, schema).await;
    }
}

/// The examples are accepted, each required field is required, and unknown fields are rejected. Not
/// applicable to objects with arbitrary members.
async fn bodies(request: impl Fn() -> Request, media: &Value) {
    let schema = Contract::shared().resolve(&media["schema"]);
    let named = media["examples"].as_object().into_iter().flatten();
    let named = named.map(|(_, example)| &example["value"]);
    let examples: Vec<&Value> = media.get("example").into_iter().chain(named).collect();
    for example in &examples {
        let good = request().json(example).send().await;
        assert_ne!(good.status, 400, "{}: {}", good.asked, good.text());
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let mut variations = Vec::new();
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        let mut without = examples[0].clone();
        without.as_object_mut().expect("an object").remove(name);
        variations.push((name, without));
    }
    for name in properties.keys().map(String::as_str).chain(["surprise"]) {
        let mut with = examples[0].clone();
        with[name] = json!(true);
        variations.push((name, with));
    }
    for (name, body) in variations {
        let refused = request().json(&body).send().await;
        let refused = refused.problem(400, "invalid_request");
        let at = format!("/{name}");
        let mut pointers = refused.pointers().into_iter();
        let is_named = pointers.any(|it| it.starts_with(&at));
        assert!(is_named, "{at}: {}", refused.body);
    }
}

/// Bodies that are no JSON.
async fn forms(callers: &Callers) {
    let click = callers.anyone.post("/unsubscriptions?token=none");
    let click = click.body("text/plain", "List-Unsubscribe=One-Click");
    click.send().await.problem(401, "invalid_webhook_signature");
    let resume = upload(&callers.ada.client, "c-1", b"");
    resume.send().await.problem(422, "validation_failed");
}

/// A user created by an administrator must set a new password first. Returns the session.
async fn first_sign_in(surface: &PublicApi) -> String {
    let (email, password) = ("dora@example.com", "Given horse battery 7");
    create_user_with_temporary_password(surface, email, password).await;
    let login = json!({"email": email, "password": password});
    let asked = surface.client().post_json("/auth/login", &login).await;
    let asked = asked.problem(401, "challenge_required");
    text(&asked.body["challenge"], "session").to_owned()
}

/// A user notifies and reads only itself.
async fn foreign_records(surface: &PublicApi, ada: &Person) {
    let bob = surface.register().await;
    let batch = json!({"notifications": [welcome(&bob.id)]});
    let (client, message) = (&ada.client, welcome(&ada.id));
    let results = client.posted("/notification-batches", &batch, 200).await;
    assert_eq!(results.string("/results/0/code"), "recipient_not_allowed");
    let own = client.posted("/notifications", &message, 201).await;
    let own = own.header("location");
    assert_eq!(client.settled(&own).await["status"], "SENT");
    bob.client.denied(&own, 404, "not_found").await;
    let profile = format!("/actors/{}", ada.id);
    bob.client.denied(&profile, 404, "not_found").await;
}

/// Names of members are escaped in pointers (RFC 6901 section 3); the contract has a pattern for them.
async fn pointers(client: &Client) {
    for name in ["line\nfeed", "\n", "\r\n\u{2028}", "/slash~\n"] {
        let body = json!({ name: 1 });
        let refused = client.refuses("/notifications", &body, 400, "invalid_request");
        let refused = refused.await;
        let escaped = name.replace('~', "~0").replace('/', "~1");
        let expected = format!("/{escaped}");
        assert!(refused.pointers().contains(&expected), "{}", refused.body);
    }
}

/// One key sends once.
async fn idempotency_keys(surface: &PublicApi, ada: &Person) {
    let keyed = async |key: &str, body: &Value| {
        let request = ada.client.post("/notifications").json(body);
        request.header("idempotency-key", key).send().await
    };
    let first = keyed("one", &welcome(&ada.id)).await.expect(201);
    let again = keyed("one", &welcome(&ada.id)).await.expect(201);
    assert_eq!(first.json(), again.json());
    let mut another = welcome(&ada.id);
    another["variables"]["name"] = json!("Grace");
    let reused = keyed("one", &another).await;
    reused.problem(409, "idempotency_key_reused");
    keyed("a b", &another).await.problem(400, "invalid_header");
    // The mail shows that the provider has been called.
    let _ = surface.mailbox().to(&ada.email).await;
    let cancelled = ada.client.delete(&first.header("location")).send().await;
    cancelled.problem(409, "already_attempted");
}

/// Only an access token identifies a user; a service is identified by its own.
async fn kinds_of_tokens(surface: &PublicApi, callers: &Callers) {
    let mut tokens = callers.ada.tokens.clone();
    let access = text(&tokens, "accessToken");
    // One bit of the signature.
    let at = access.len() - 5;
    let is_a = access.as_bytes()[at] == b'A';
    let flipped = if is_a { "B" } else { "A" };
    tokens["flipped"] = format!("{}{flipped}{}", &access[..at], &access[at + 1..]).into();
    tokens["parts"] = "a.b.c".into();
    for (name, code) in [
        ("idToken", "token_use_not_accepted"),
        ("flipped", "token_signature_invalid"),
        ("refreshToken", "token_malformed"),
        ("parts", "token_malformed"),
    ] {
        let client = surface.client().with_token(text(&tokens, name));
        client.denied("/auth/me", 401, code).await;
    }
    let me = callers.other.read("/auth/me").await;
    assert_eq!([&me["kind"], &me["serviceId"]], ["service", "document"]);
}
