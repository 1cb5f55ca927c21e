//! The OpenAPI contract in both directions: every documented operation responds as documented, and
//! every route is documented. The client of the harness checks each response in every test.

mod notifications;
mod pointers;

use std::collections::BTreeSet;
use std::path::Path;

use http::Method;
use postern_tests::config_file::ConfigFile;
use postern_tests::http_body::json;
use postern_tests::pools::create_user_with_temporary_password;
use postern_tests::split::Changes;
use postern_tests::surface::{PASSWORD, landed, resume, resume_form, sample, text, welcome};
use postern_tests::{Contract, Person, Postern, PublicApi, Split};
use serde_json::Value;

type Operations = BTreeSet<(String, String)>;

fn documented() -> Operations {
    let operations = Contract::shared().operations().iter();
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
    let config: toml::Table = ConfigFile::of_gateway().text().parse().expect("TOML");
    let mut routes = Operations::new();
    for route in config["route"].as_array().expect("routes") {
        let path = nameless(route["path"].as_str().expect("a route has a path"));
        for method in route["methods"].as_array().expect("a route has methods") {
            routes.insert((method.as_str().expect("a method").to_owned(), path.clone()));
        }
    }
    assert_eq!(routes, documented());
}

#[test]
fn public_routes_match_the_document() {
    let config: toml::Table = ConfigFile::of_gateway().text().parse().expect("TOML");
    for route in config["route"].as_array().expect("routes") {
        let path = route["path"]
            .as_str()
            .expect("a route has a path")
            .replace(['{', '}'], "");
        let method = route["methods"][0]
            .as_str()
            .expect("a method")
            .parse()
            .expect("a method");
        let operation = Contract::shared()
            .find(&method, &path)
            .expect("every route is documented");
        assert_eq!(
            route["policy"].as_str() != Some("public"),
            operation.is_protected,
            "{}",
            operation.id
        );
    }
}

/// Returns the routes of a router from its source: `.route("PATH", METHOD(…))`.
fn routes_of(source: &str) -> Operations {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(source);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut routes = Operations::new();
    for part in text.split(".route(\"").skip(1) {
        let (path, rest) = part.split_once('"').expect("a route's path ends");
        // Up to the next route, or the end of the function.
        let methods = rest.split(".route(").next().unwrap_or_default();
        let methods = methods.split("\n}").next().unwrap_or_default();
        for method in ["get", "post", "put", "patch", "delete"] {
            if methods.contains(&format!("{method}(")) {
                routes.insert((method.to_uppercase(), nameless(path)));
            }
        }
    }
    assert!(!routes.is_empty(), "no route in {source}");
    routes
}

#[test]
fn every_upstream_route_is_documented() {
    let documented = documented();
    for source in [
        "auth-upstream/src/http.rs",
        "notify-upstream/src/http.rs",
        "dev/src/actors.rs",
        "dev/src/documents.rs",
    ] {
        let undocumented: Vec<_> = routes_of(source).difference(&documented).cloned().collect();
        assert!(undocumented.is_empty(), "{source}: {undocumented:?}");
    }
}

#[tokio::test]
async fn undocumented_method_is_405_with_the_allowed_ones() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    let contract = Contract::shared();
    for operation in contract.operations() {
        let path = operation.path.replace(['{', '}'], "");
        let documented: BTreeSet<_> = contract.methods(&path).into_iter().cloned().collect();
        let all = [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ];
        for method in all
            .into_iter()
            .filter(|method| !documented.contains(method))
        {
            let refusal = ada
                .client
                .request(method, &path)
                .send()
                .await
                .problem(405, "method_not_allowed");
            let allow = refusal.headers["allow"].to_str().expect("text").to_owned();
            let allowed: BTreeSet<Method> = allow
                .split(',')
                .map(|name| name.trim().parse().expect("a method"))
                .filter(|m| m != "HEAD")
                .collect();
            assert_eq!(allowed, documented, "{path}");
        }
    }
    postern.stop().await;
}

/// Operations without a successful response in this installation, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "confirmRegistration",
        "the pool must ask for a code: the test below",
    ),
    (
        "webhook",
        "no provider of the shipped configuration sends webhooks: webhook.rs",
    ),
];

#[tokio::test]
async fn every_documented_operation_responds_as_documented() {
    let postern = Postern::start().await;
    let contract = Contract::fresh();
    let surface = postern.surface().against(contract);
    let ada = sign_in(&surface).await;
    passwords(&surface, &ada).await;
    challenge(&surface).await;
    social(&surface).await;
    actors(&postern, &surface, &ada).await;
    notifications::all_operations(&postern, &ada).await;
    keys(&surface).await;
    let unanswered: Vec<_> = contract
        .unanswered()
        .into_iter()
        .map(|operation| operation.id.as_str())
        .collect();
    let expected: Vec<_> = ELSEWHERE.iter().map(|(id, _)| *id).collect();
    assert_eq!(
        unanswered.iter().collect::<BTreeSet<_>>(),
        expected.iter().collect::<BTreeSet<_>>()
    );
    postern.stop().await;
}

async fn sign_in(surface: &PublicApi) -> Person {
    let ada = surface.register().await;
    let client = surface.client();
    let login = json!({"email": ada.email, "password": PASSWORD});
    let first = client.posted("/auth/login", &login, 200).await.json();
    let refresh = |tokens: &Value| json!({"refreshToken": text(tokens, "refreshToken")});
    let second = client
        .posted("/auth/tokens/refresh", &refresh(&first), 200)
        .await
        .json();
    let third = client
        .posted("/auth/refresh-user-token", &refresh(&second), 200)
        .await
        .json();
    let fourth = client
        .posted("/api/session", &refresh(&third), 200)
        .await
        .json();
    let _ = client.posted("/api/session", &login, 200).await;
    let _ = client.posted("/auth/logout", &refresh(&fourth), 204).await;
    let gone = client
        .post_json("/auth/tokens/refresh", &refresh(&fourth))
        .await;
    let _ = gone.problem(401, "invalid_refresh_token");
    ada
}

async fn passwords(surface: &PublicApi, ada: &Person) {
    let client = surface.client();
    let _ = client
        .posted("/auth/password/forgot", &json!({"email": ada.email}), 204)
        .await;
    let mail = surface.mailbox().to(&ada.email).await;
    let code = text(&mail, "text")
        .split(|c: char| !c.is_ascii_digit())
        .find(|word| word.len() == 8);
    let code = code.unwrap_or_else(|| panic!("no code in {mail}"));
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
    let asked = surface
        .client()
        .refuses("/auth/login", &login, 401, "challenge_required")
        .await;
    assert_eq!(
        asked.body["challenge"]["name"], "NEW_PASSWORD_REQUIRED",
        "{}",
        asked.body
    );
    let answer = json!({"session": asked.body["challenge"]["session"], "newPassword": PASSWORD});
    let tokens = surface
        .client()
        .posted("/auth/challenge", &answer, 200)
        .await
        .json();
    let _ = surface.person(email, tokens).await;
}

async fn social(surface: &PublicApi) {
    // Example of RFC 7636, appendix B.
    let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let token = surface
        .social_sign_in(&sample("ada"), Some(challenge))
        .await
        .expect("ada is signed in");
    let body = json!({"temporaryToken": token, "codeVerifier": verifier});
    let _ = surface
        .client()
        .posted("/auth/tokens/exchange", &body, 200)
        .await;
    // A provider may send the browser with a form.
    let back = surface.social_callback(&sample("ada"), None).await;
    let query = back.query().expect("a query").to_owned();
    let form = "application/x-www-form-urlencoded";
    let posted = surface.client().post(back.path()).body(form, query);
    landed(&posted.send().await).expect("ada is signed in");
    let declined = surface.social_sign_in(&sample("nobody"), None).await;
    assert_eq!(declined, Err("access_denied".to_owned()));
}

async fn actors(postern: &Postern, surface: &PublicApi, ada: &Person) {
    let _ = ada.client.fetch(&format!("/actors/{}", ada.id), 200).await;
    let _ = ada
        .client
        .fetch(&format!("/actor?actorId={}", ada.id), 200)
        .await;
    let auth = surface
        .client()
        .with_token(&postern.service_token("auth").await);
    let actor =
        json!({"actorId": "a-1", "email": "one@example.com", "profile": {"firstName": "One"}});
    let _ = auth.posted("/actors/register", &actor, 201).await;
    let _ = auth.posted("/actors/register", &actor, 200).await;
    let (content, _) = resume(1000);
    let stored = ada
        .client
        .post("/resumes")
        .multipart(resume_form("c-1", &content))
        .send()
        .await
        .expect(201);
    let _ = ada.client.fetch(&stored.header("location"), 200).await;
    let resumes = ada.client.get("/resumes?candidateId=c-1").send().await;
    assert_eq!(
        resumes.expect(200).json()["resumes"][0]["candidateId"],
        "c-1"
    );
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
    let admin = surface
        .client()
        .with_token(&postern.token_of_group("admin").await);
    let _ = admin
        .put("/admin/features/beta")
        .json(&json!({"on": true, "for": ["a"]}))
        .send()
        .await
        .expect(200);
    let _ = ada
        .client
        .put("/admin/features/beta")
        .json(&json!({}))
        .send()
        .await
        .problem(403, "insufficient_scope");
}

/// Requests the keys and metadata for services that verify tokens themselves.
async fn keys(surface: &PublicApi) {
    let issuer = surface
        .client()
        .fetch("/.well-known/openid-configuration", 200)
        .await;
    assert!(
        issuer
            .string("/jwks_uri")
            .starts_with(&issuer.string("/issuer")),
        "{}",
        issuer.text()
    );
    let keys = surface.client().fetch("/.well-known/jwks.json", 200).await;
    assert!(
        keys.json()["keys"]
            .as_array()
            .is_some_and(|keys| keys.len() >= 2),
        "of both pools"
    );
    let known = surface
        .client()
        .get("/.well-known/jwks.json")
        .header("if-none-match", &keys.header("etag"));
    let _ = known.send().await.expect(304);
}

#[tokio::test]
async fn registration_is_confirmed_with_a_code_if_required() {
    let split = Split::start_with(Changes {
        auth: vec![("confirm", "\"code\"")],
        ..Changes::default()
    })
    .await;
    let client = split.surface().client();
    let email = "carla@example.com";
    let body = json!({"email": email, "password": PASSWORD, "profile": {"firstName": "Carla"}});
    let asked = client
        .refuses("/auth/register", &body, 401, "challenge_required")
        .await;
    assert_eq!(
        asked.body["challenge"]["name"], "CONFIRM_SIGN_UP",
        "{}",
        asked.body
    );
    let session = &asked.body["challenge"]["session"];
    let mail = split.surface().mailbox().to(email).await;
    let code = text(&mail, "text")
        .split(|c: char| !c.is_ascii_digit())
        .find(|word| word.len() == 8)
        .expect("a code");
    let wrong = json!({"session": session, "code": "000000", "password": PASSWORD});
    let _ = client
        .refuses("/auth/register/confirm", &wrong, 422, "invalid_code")
        .await;
    let right = json!({"session": session, "code": code, "password": PASSWORD});
    let tokens = client
        .posted("/auth/register/confirm", &right, 201)
        .await
        .json();
    let carla = split.surface().person(email, tokens).await;
    let actor = carla
        .client
        .fetch(&format!("/actors/{}", carla.id), 200)
        .await;
    assert_eq!(actor.string("/firstName"), "Carla");
    // The code has verified the address, so that Carla has preferences and gets what she sends.
    let change = json!({"categories": [{"category": "welcome", "subscribed": true}]});
    let put = carla.client.put("/notification-preferences").json(&change);
    let _ = put.send().await.expect(200);
    let message = welcome(&carla.id);
    let sent = carla.client.post_json("/notifications", &message);
    let _ = sent.await.expect(201);
    split.stop().await;
}
