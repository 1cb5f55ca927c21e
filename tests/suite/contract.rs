//! The OpenAPI contract in both directions: every documented operation responds as documented, and
//! every route is documented. The client of the harness checks each response in every test.

mod notifications;

use std::collections::BTreeSet;

use postern_harness::gateway::shipped_routes;
use postern_harness::json;
use postern_harness::pools::create_user_with_temporary_password;
use postern_harness::public_api::{PASSWORD, landed, resume, sample, text, upload, welcome};
use postern_harness::{Contract, Installation, Person, PublicApi, Standalone};
use serde_json::Value;

type Operations = BTreeSet<(String, String)>;

fn documented() -> Operations {
    let operations = Contract::shared().operations.iter();
    operations
        .map(|operation| (operation.method.to_string(), nameless(&operation.path)))
        .collect()
}

/// Returns a template without parameter names, for comparison.
fn nameless(path: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| if part.starts_with('{') { "{}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn gateway_routes_match_the_document() {
    let mut routes = Operations::new();
    for (path, methods, _) in shipped_routes() {
        let of_path = |method| (method, nameless(&path));
        routes.extend(methods.into_iter().map(of_path));
    }
    assert_eq!(routes, documented());
}

#[test]
fn public_routes_match_the_document() {
    for (path, methods, is_public) in shipped_routes() {
        let path = path.replace(['{', '}'], "");
        let method = methods[0].parse().expect("a method");
        let operation = Contract::shared().find(&method, &path);
        let operation = operation.expect("every route is documented");
        assert_eq!(is_public, !operation.is_protected, "{}", operation.id);
    }
}

#[tokio::test]
async fn undocumented_method_is_405_with_the_allowed_ones() {
    let postern = Standalone::start().await;
    let ada = postern.surface().register().await;
    let contract = Contract::shared();
    for operation in &contract.operations {
        let path = operation.sample_path();
        let documented = contract.methods(&path);
        let all = ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter();
        for method in all.filter(|method| !documented.contains(method)) {
            let method = method.parse().expect("a method");
            let refusal = ada.client.request(method, &path).send().await;
            let refusal = refusal.problem(405, "method_not_allowed");
            let allow = refusal.headers["allow"].to_str().expect("text");
            let allowed = allow.split(',').map(str::trim);
            let allowed: BTreeSet<_> = allowed.filter(|name| *name != "HEAD").collect();
            assert_eq!(allowed, documented, "{path}");
        }
    }
    postern.stop().await;
}

/// Operations without a successful response in this installation: `webhook.rs` has a pool that asks for a
/// code, and a provider that sends webhooks.
const ELSEWHERE: [&str; 2] = ["confirmRegistration", "webhook"];

#[tokio::test]
async fn every_documented_operation_responds_as_documented() {
    let postern = Standalone::start().await;
    let contract = Contract::fresh();
    let surface = postern.surface().against(contract);
    let ada = sign_in(&surface).await;
    passwords(&surface, &ada).await;
    challenge(&surface).await;
    social(&surface).await;
    actors(&postern, &surface, &ada).await;
    notifications::all_operations(&postern, &ada).await;
    keys(&surface).await;
    let unseen = contract.unseen();
    let unanswered = contract.operations.iter().filter(|operation| {
        let mut good = operation.responses.keys().filter(|status| **status < 400);
        good.all(|status| unseen.contains(&(operation.id.as_str(), *status)))
    });
    let unanswered: BTreeSet<&str> = unanswered.map(|one| one.id.as_str()).collect();
    assert_eq!(unanswered, BTreeSet::from(ELSEWHERE));
    postern.stop().await;
}

async fn sign_in(surface: &PublicApi) -> Person {
    let ada = surface.register().await;
    let client = surface.client();
    let login = json!({"email": ada.email, "password": PASSWORD});
    let first = client.posted("/auth/login", &login, 200).await.json();
    let refresh = |tokens: &Value| json!({"refreshToken": text(tokens, "refreshToken")});
    let mut tokens = first;
    for path in [
        "/auth/tokens/refresh",
        "/auth/refresh-user-token",
        "/api/session",
    ] {
        tokens = client.posted(path, &refresh(&tokens), 200).await.json();
    }
    let _ = client.posted("/api/session", &login, 200).await;
    let body = refresh(&tokens);
    let _ = client.posted("/auth/logout", &body, 204).await;
    let gone = client.post_json("/auth/tokens/refresh", &body).await;
    let _ = gone.problem(401, "invalid_refresh_token");
    ada
}

async fn passwords(surface: &PublicApi, ada: &Person) {
    let client = surface.client();
    let forgot = json!({"email": ada.email});
    let _ = client.posted("/auth/password/forgot", &forgot, 204).await;
    let code = surface.mailbox().code(&ada.email).await;
    let new = "Another horse battery 8";
    let wrong = json!({"email": ada.email, "code": "000000", "newPassword": new});
    let _ = client
        .refuses("/auth/password/reset", &wrong, 422, "invalid_code")
        .await;
    let reset = json!({"email": ada.email, "code": code, "newPassword": new});
    let _ = client.posted("/auth/password/reset", &reset, 204).await;
    let old = json!({"email": ada.email, "password": PASSWORD});
    let _ = client
        .refuses("/auth/login", &old, 401, "invalid_credentials")
        .await;
    let login = json!({"email": ada.email, "password": new});
    let _ = client.posted("/auth/login", &login, 200).await;
}

/// A user created by an administrator must set a new password first.
async fn challenge(surface: &PublicApi) {
    let (email, first) = ("dora@example.com", "Given horse battery 7");
    create_user_with_temporary_password(surface, email, first).await;
    let login = json!({"email": email, "password": first});
    let client = surface.client();
    let asked = client.refuses("/auth/login", &login, 401, "challenge_required");
    let challenge = asked.await.body["challenge"].clone();
    assert_eq!(challenge["name"], "NEW_PASSWORD_REQUIRED", "{challenge}");
    let answer = json!({"session": challenge["session"], "newPassword": PASSWORD});
    let tokens = client.posted("/auth/challenge", &answer, 200).await.json();
    let _ = surface.person(email, tokens).await;
}

async fn social(surface: &PublicApi) {
    // Example of RFC 7636, appendix B.
    let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let ada = sample("ada");
    let token = surface.social_sign_in(&ada, Some(challenge)).await;
    let token = token.expect("ada is signed in");
    let body = json!({"temporaryToken": token, "codeVerifier": verifier});
    let client = surface.client();
    let _ = client.posted("/auth/tokens/exchange", &body, 200).await;
    // A provider may send the browser with a form.
    let back = surface.social_callback(&sample("ada"), None).await;
    let (path, query) = back.split_once('?').expect("a query");
    let form = "application/x-www-form-urlencoded";
    let posted = client.post(path).body(form, query.to_owned());
    landed(&posted.send().await).expect("ada is signed in");
    let declined = surface.social_sign_in(&sample("nobody"), None).await;
    assert_eq!(declined, Err("access_denied".to_owned()));
}

async fn actors(postern: &Standalone, surface: &PublicApi, ada: &Person) {
    let _ = ada.client.fetch(&format!("/actors/{}", ada.id), 200).await;
    let other_path = format!("/actor?actorId={}", ada.id);
    let _ = ada.client.fetch(&other_path, 200).await;
    let token = postern.service_token("auth").await;
    let auth = surface.client().with_token(&token);
    let actor =
        json!({"actorId": "a-1", "email": "one@example.com", "profile": {"firstName": "One"}});
    let _ = auth.posted("/actors/register", &actor, 201).await;
    let _ = auth.posted("/actors/register", &actor, 200).await;
    let (content, _) = resume(1000);
    let stored = upload(&ada.client, "c-1", &content)
        .send()
        .await
        .expect(201);
    let _ = ada.client.fetch(&stored.header("location"), 200).await;
    let resumes = ada.client.get("/resumes?candidateId=c-1").send().await;
    let resumes = resumes.expect(200).json();
    assert_eq!(resumes["resumes"][0]["candidateId"], "c-1");
    let candidates = auth.read("/candidates").await;
    assert_eq!(candidates["candidates"][0]["actorId"], "a-1");
    let candidate = json!({"email": "two@example.com"});
    let spec = json!({"title": "Analyst", "description": "Writes programs."});
    for (path, body, list) in [
        ("/candidates", candidate, "candidates"),
        ("/job-specs", spec, "jobSpecs"),
    ] {
        let added = auth.posted(path, &body, 201).await;
        let read = auth.get(&added.header("location")).send().await;
        assert_eq!(read.expect(200).json(), added.json());
        let all = auth.read(path).await;
        let all = all[list].as_array().expect("a list");
        assert!(all.contains(&added.json()), "{path}");
    }
    let token = postern.token_of_group("admin").await;
    let admin = surface.client().with_token(&token);
    let on = json!({"on": true, "for": ["a"]});
    let put = admin.put("/admin/features/beta").json(&on).send().await;
    let _ = put.expect(200);
    let put = ada.client.put("/admin/features/beta").json(&json!({}));
    let _ = put.send().await.problem(403, "insufficient_scope");
}

/// Requests the keys and metadata for services that verify tokens themselves.
async fn keys(surface: &PublicApi) {
    let client = surface.client();
    let path = "/.well-known/openid-configuration";
    let issuer = client.fetch(path, 200).await;
    let url = issuer.string("/jwks_uri");
    assert!(url.starts_with(&issuer.string("/issuer")), "{url}");
    let keys = client.fetch("/.well-known/jwks.json", 200).await;
    let count = keys.json()["keys"].as_array().map_or(0, Vec::len);
    assert!(count >= 2, "of both pools");
    let known = client.get("/.well-known/jwks.json");
    let known = known.header("if-none-match", &keys.header("etag"));
    let _ = known.send().await.expect(304);
}

/// Registers a person, whose address is confirmed with a code.
pub(crate) async fn confirm_registration(split: &Installation) -> Person {
    let client = split.surface().client();
    let email = "carla@example.com";
    let body = json!({"email": email, "password": PASSWORD, "profile": {"firstName": "Carla"}});
    let asked = client.refuses("/auth/register", &body, 401, "challenge_required");
    let challenge = asked.await.body["challenge"].clone();
    assert_eq!(challenge["name"], "CONFIRM_SIGN_UP", "{challenge}");
    let code = split.surface().mailbox().code(email).await;
    let answer =
        |code: &str| json!({"session": challenge["session"], "code": code, "password": PASSWORD});
    let path = "/auth/register/confirm";
    let wrong = answer("000000");
    let _ = client.refuses(path, &wrong, 422, "invalid_code").await;
    let right = answer(&code);
    let tokens = client.posted(path, &right, 201).await.json();
    let carla = split.surface().person(email, tokens).await;
    let actor = format!("/actors/{}", carla.id);
    let actor = carla.client.fetch(&actor, 200).await;
    assert_eq!(actor.string("/firstName"), "Carla");
    // The code has verified the address, so that Carla has preferences and gets what she sends.
    let change = json!({"categories": [{"category": "welcome", "subscribed": true}]});
    let put = carla.client.put("/notification-preferences").json(&change);
    let _ = put.send().await.expect(200);
    let message = welcome(&carla.id);
    let sent = carla.client.post_json("/notifications", &message);
    let _ = sent.await.expect(201);
    carla
}
