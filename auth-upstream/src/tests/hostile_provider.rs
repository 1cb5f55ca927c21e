//! Incorrect, missing and malicious responses of a social provider. The UI gets the name of an
//! error.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::{Code, Problem};
use serde_json::{Value, json};
use url::Url;

use crate::flows::SocialCallback;
use crate::testing::browser::{self, Person, callback, consent, follow, start};
use crate::testing::{ADA, Fault, Fixture, client, http, refused};

const DISCOVERY: &str = "/.well-known/openid-configuration";
const TOKEN: &str = "/token";

async fn start_again(fixture: &Fixture) -> Result<Url, Problem> {
    let client = client();
    fixture.flows().start_social_sign_in(&client, 0, None).await
}

async fn with_short_deadline() -> Fixture {
    Fixture::with(|it| it.deadline = Some(Duration::from_secs(1))).await
}

async fn sign_in(fixture: &Fixture) -> String {
    let landing = browser::sign_in(fixture, browser::ADA).await;
    match landing.name {
        "error" => landing.value,
        name => name.to_owned(),
    }
}

/// Signs another person in and returns the ID token.
async fn id_token_of_another_sign_in(fixture: &Fixture) -> Value {
    let captured = Arc::new(Mutex::new(Value::Null));
    let capture = Arc::clone(&captured);
    let capture = Fault::change(move |answer| *capture.lock() = answer["id_token"].clone());
    fixture.inject(TOKEN, 1, capture);
    let bob = Person {
        email: "bob@example.com",
        is_verified: true,
    };
    browser::sign_in(fixture, bob).await;
    let captured = captured.lock();
    captured.clone()
}

fn forge(answer: &mut Value) {
    let token = answer["id_token"].as_str().expect("a token");
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    let forged: String = signature.chars().rev().collect();
    answer["id_token"] = json!(format!("{signed}.{forged}"));
}

#[tokio::test]
async fn invalid_token_responses_are_rejected() {
    let fixture = Fixture::new().await;
    let another = id_token_of_another_sign_in(&fixture).await;
    let page = |status| Fault::Answer(status, "text/html", "<html>".to_owned());
    let rows = [
        (page(200), "provider_error"),
        (page(500), "provider_error"),
        (page(307), "provider_error"),
        (
            Fault::Answer(200, "application/json", " ".repeat(300 << 10)),
            "provider_unavailable",
        ),
        (
            Fault::change(|answer| drop(answer["id_token"].take())),
            "invalid_id_token",
        ),
        (
            Fault::change(move |answer| answer["id_token"] = another.clone()),
            "invalid_id_token",
        ),
        (Fault::change(forge), "invalid_id_token"),
    ];
    for (number, (fault, expected)) in rows.into_iter().enumerate() {
        fixture.inject(TOKEN, 1, fault);
        assert_eq!(sign_in(&fixture).await, expected, "{number}");
    }
    assert!(fixture.pool().subject(ADA).await.is_none());
    assert_eq!(sign_in(&fixture).await, "temporaryToken");
}

/// Twitch, AD FS and others deviate in fields that a sign-in does not need.
#[tokio::test]
async fn unused_fields_of_token_responses_are_ignored() {
    let fixture = Fixture::new().await;
    for (name, value) in [
        ("scope", json!(["openid", "email"])),
        ("scope", json!(7)),
        ("expires_in", json!("3599")),
        ("expires_in", json!(3599.5)),
        ("token_type", Value::Null),
        ("access_token", json!({})),
        ("refresh_token", Value::Null),
        ("error", Value::Null),
    ] {
        let changed = value.clone();
        let odd = Fault::change(move |answer| answer[name] = changed.clone());
        fixture.inject(TOKEN, 1, odd);
        assert_eq!(sign_in(&fixture).await, "temporaryToken", "{name} {value}");
    }
    let slim = Fault::change(|answer| *answer = json!({ "id_token": answer["id_token"] }));
    fixture.inject(TOKEN, 1, slim);
    assert_eq!(sign_in(&fixture).await, "temporaryToken");
}

#[tokio::test]
async fn client_authentication_is_discovered_or_configured() {
    let secret = "client_secret=";
    for (social, methods, is_posted) in [
        ("", json!(["client_secret_post"]), true),
        (
            "",
            json!(["client_secret_post", "client_secret_basic"]),
            false,
        ),
        ("", json!(["private_key_jwt"]), false),
        ("", Value::Null, false),
        ("", json!("client_secret_post"), false),
        (
            "token_endpoint_auth_method = 'client_secret_post'",
            json!(["client_secret_basic"]),
            true,
        ),
        (
            "token_endpoint_auth_method = 'client_secret_basic'",
            json!(["client_secret_post"]),
            false,
        ),
    ] {
        let fixture = Fixture::with_social(social).await;
        let supported = methods.clone();
        let change = Fault::change(move |found| {
            found["token_endpoint_auth_methods_supported"] = supported.clone();
        });
        fixture.inject(DISCOVERY, 1, change);
        assert_eq!(sign_in(&fixture).await, "temporaryToken");
        let sent = &fixture.bodies(TOKEN)[0];
        let sent = sent.as_str().expect("a form");
        assert_eq!(sent.contains(secret), is_posted, "{social} {methods}");
    }
}

/// Endpoints of the discovery document receive codes and the secret as configured ones do.
#[tokio::test]
async fn insecure_discovered_endpoint_is_rejected() {
    let fixture = Fixture::new().await;
    for endpoint in ["authorization_endpoint", "token_endpoint", "jwks_uri"] {
        for url in [
            "http://0.0.0.0:1/x",
            "http://login.example/x",
            "ftp://localhost/x",
            "x",
        ] {
            let evil = Fault::change(move |found| found[endpoint] = json!(url));
            fixture.inject(DISCOVERY, 1, evil);
            fixture.clock.advance(Duration::from_secs(1));
            let started = start_again(&fixture);
            let started = started.await;
            let rejected = started.expect_err("rejected");
            assert_eq!(rejected.code(), Code::Unavailable, "{endpoint} {url}");
            let degraded = fixture.service.metrics.health.degraded();
            assert!(
                degraded["social_provider"].contains(endpoint),
                "{degraded:?}"
            );
        }
    }
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(sign_in(&fixture).await, "temporaryToken");
}

/// Apple sends the name beside the first code, and not in the ID token.
#[tokio::test]
async fn posted_name_is_used_if_the_token_has_none() {
    let sent = r#"{"name":{"firstName":"Aida\u0007","lastName":"L"},"email":"eve@example.com"}"#;
    for (scopes, expected) in [
        ("scopes = ['openid', 'email']", "Aida L"),
        ("", "Ada Lovelace"),
    ] {
        let fixture = Fixture::with_social(scopes).await;
        let mut back = callback(&fixture).await;
        back.user = Some(sent.to_owned());
        let token = follow(&fixture, back).await.value;
        let user = fixture.exchange(&token).await.user;
        assert_eq!(user.name.as_deref(), Some(expected));
        assert_eq!(user.email, ADA);
        let profile = &fixture.bodies("/actors/register")[0]["profile"];
        assert_eq!(
            profile["firstName"],
            expected.split(' ').next().expect("a name")
        );
    }
    let fixture = Fixture::new().await;
    let mut back = callback(&fixture).await;
    back.user = Some("{".to_owned());
    assert_eq!(follow(&fixture, back).await.name, "temporaryToken");
}

#[tokio::test]
async fn posted_name_is_kept_until_the_profile_is_saved() {
    let fixture = Fixture::with_social("scopes = ['openid', 'email']").await;
    // The code for the address is not entered; then the actor service is away.
    let person = Person {
        is_verified: false,
        ..browser::ADA
    };
    let mut back = consent(&start(&fixture, None).await, person).await;
    back.user = Some(r#"{"name":{"firstName":"Aida","lastName":"L"}}"#.to_owned());
    let token = follow(&fixture, back).await.value;
    let asked = fixture.try_exchange(&token, None).await;
    asked.expect_err("a code is required");
    fixture.inject("/actors/register", 3, Fault::status(503));
    for _ in 0..3 {
        let token = follow(&fixture, callback(&fixture).await).await.value;
        fixture.exchange(&token).await;
    }
    let sent = fixture.bodies("/actors/register");
    assert_eq!(sent.len(), 4, "three attempts, and a later one");
    for body in sent {
        let name = [&body["profile"]["firstName"], &body["profile"]["lastName"]];
        assert_eq!(name, ["Aida", "L"], "{body}");
    }
}

#[tokio::test]
async fn issuer_of_a_callback_must_be_the_provider() {
    let fixture = Fixture::new().await;
    for issuer in [None, Some("https://evil.example".to_owned())] {
        let mut back = callback(&fixture).await;
        back.issuer = issuer;
        assert_eq!(follow(&fixture, back).await.value, "invalid_request");
    }
    // A redirect URI with the name of another provider.
    let mut back = callback(&fixture).await;
    back.provider = Some("other".to_owned());
    assert_eq!(follow(&fixture, back).await.value, "invalid_request");
    // A provider that does not send it.
    let fixture = Fixture::new().await;
    let member = "authorization_response_iss_parameter_supported";
    let silent = Fault::change(move |found| found[member] = json!(false));
    fixture.inject(DISCOVERY, 1, silent);
    let mut back = callback(&fixture).await;
    back.issuer = None;
    assert_eq!(follow(&fixture, back).await.name, "temporaryToken");
}

#[tokio::test]
async fn timeout_and_provider_errors_map_to_error_names() {
    let fixture = with_short_deadline().await;
    fixture.inject(TOKEN, 1, Fault::Silence);
    assert_eq!(sign_in(&fixture).await, "provider_unavailable");
    for (error, expected) in [
        ("access_denied", "access_denied"),
        ("user_denied", "access_denied"),
        ("user_cancelled_login", "access_denied"),
        ("user_cancelled_authorize", "access_denied"),
        ("interaction_required", "access_denied"),
        ("temporarily_unavailable", "provider_unavailable"),
        ("server_error", "provider_unavailable"),
        ("invalid_scope", "provider_error"),
        ("<script>alert(1)</script>", "provider_error"),
    ] {
        // An error has precedence over a code.
        let sent = SocialCallback {
            error: Some(error.to_owned()),
            ..callback(&fixture).await
        };
        assert_eq!(follow(&fixture, sent).await.value, expected);
    }
}

#[tokio::test]
async fn discovery_is_cached_repeated_and_validated() {
    let fixture = with_short_deadline().await;
    let proxy = &fixture;
    let evil = Fault::change(|found| found["issuer"] = json!("https://evil.example"));
    for fault in [Fault::Silence, evil.clone()] {
        proxy.inject(DISCOVERY, 1, fault);
        fixture.clock.advance(Duration::from_secs(1));
        let discoveries = proxy.count(DISCOVERY);
        for _ in 0..3 {
            let rejected = start_again(&fixture);
            refused(rejected.await, Code::Unavailable);
        }
        let repeated = proxy.count(DISCOVERY) - discoveries;
        assert_eq!(repeated, 1, "at most once per second");
    }
    fixture.clock.advance(Duration::from_secs(1));
    let discoveries = proxy.count(DISCOVERY);
    for _ in 0..2 {
        assert_eq!(sign_in(&fixture).await, "temporaryToken");
    }
    let cached = proxy.count(DISCOVERY) - discoveries;
    assert_eq!(cached, 1, "cached for an hour");
    // A failed discovery keeps the known endpoints.
    proxy.inject(DISCOVERY, 1, evil);
    fixture.clock.advance(Duration::from_secs(3600));
    assert_eq!(sign_in(&fixture).await, "temporaryToken");
    // Changed endpoints are adopted a minute later.
    let moved = json!(format!("{}/moved", fixture.development_url()));
    let moved = Fault::change(move |found| found["token_endpoint"] = moved.clone());
    proxy.inject(DISCOVERY, 1, moved);
    assert_eq!(sign_in(&fixture).await, "temporaryToken");
    fixture.clock.advance(Duration::from_secs(60));
    sign_in(&fixture).await;
    assert_eq!(proxy.count("/moved"), 1);
}

#[tokio::test]
async fn code_challenge_may_be_required() {
    let fixture = Fixture::with_social("require_code_challenge = true").await;
    let url = fixture.serve().await;
    let get = async |query: &str| {
        let url = format!("{url}/auth/social/login{query}");
        http().get(url).send().await.expect("a response")
    };
    let rejected = get("").await;
    assert_eq!(rejected.status(), 400);
    let problem: Value = rejected.json().await.expect("a problem");
    let error = &problem["errors"][0];
    let found = (&error["pointer"], &error["code"]);
    let expected = (&json!("?code_challenge"), &json!("missing_field"));
    assert_eq!(found, expected);
    let started = get("?code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM").await;
    assert_eq!(started.status(), 302);
    assert_eq!(started.headers()["cache-control"], "no-store");
}
