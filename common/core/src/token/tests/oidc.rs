use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::fixtures::{Behaviour, NOW_S, OTHER_RSA, RSA, Server, Signer, clock, jwks, with};
use crate::clock::Clock;
use crate::token::TokenError;
use crate::token::oidc::{IdToken, OidcVerifier};

const PROVIDER: &str = "https://provider.test";
const CLIENT: &str = "web-client";
const LEEWAY: Duration = Duration::from_secs(60);

fn claims() -> Value {
    json!({
        "iss": PROVIDER, "sub": "42", "aud": CLIENT, "nonce": "n-1", "iat": NOW_S, "exp": NOW_S + 300,
        "email": "ada@example.com", "email_verified": true, "name": "Ada", "picture": "https://provider.test/a.png",
    })
}

async fn provider() -> (Server, Clock) {
    (
        Server::start(Behaviour::Serve(jwks(&[RSA.jwk("p1")]))).await,
        clock(),
    )
}

async fn verify(claims: &Value) -> Result<IdToken, TokenError> {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
    verifier.verify(&RSA.token("p1", claims), "n-1", true).await
}

#[tokio::test]
async fn valid_id_token_is_an_identity() {
    let identity = verify(&claims()).await.expect("accepted");
    assert_eq!((&*identity.issuer, &*identity.subject), (PROVIDER, "42"));
    assert_eq!(identity.email.as_deref(), Some("ada@example.com"));
    assert!(identity.email_verified);
    assert_eq!(
        (identity.name.as_deref(), identity.claims["nonce"].as_str()),
        (Some("Ada"), Some("n-1"))
    );
}

#[tokio::test]
async fn texts_for_pages_are_harmless() {
    let long = "n".repeat(300);
    for (name, value, expected) in [
        ("name", "Zoë Ångström 😀", Some("Zoë Ångström 😀")),
        ("name", "A\u{0}d\na\u{202e}x", Some("Adax")),
        ("name", "\u{7}", None),
        ("name", &*long, Some(&long[..256])),
        (
            "picture",
            "https://a.test/p.png",
            Some("https://a.test/p.png"),
        ),
        ("picture", "javascript:alert(1)", None),
        ("picture", " javascript:alert(1)", None),
        ("picture", "data:text/html,x", None),
        ("picture", "http://a.test/p.png", None),
        ("picture", "//a.test/p.png", None),
        ("email", "ada@example.com\n", None),
    ] {
        let identity = verify(&with(claims(), name, json!(value))).await;
        let identity = identity.expect("accepted");
        let found = match name {
            "name" => identity.name,
            "picture" => identity.picture,
            _ => identity.email,
        };
        assert_eq!(found.as_deref(), expected, "{name} {value:?}");
    }
}

/// Entra ID lists up to 200 groups.
#[tokio::test]
async fn long_id_token_is_accepted() {
    let groups: Vec<String> = (0..500).map(|number| format!("{number:036}")).collect();
    let long = with(claims(), "groups", json!(groups));
    assert!(verify(&long).await.is_ok());
    let long = with(claims(), "groups", json!("x".repeat(64 << 10)));
    assert_eq!(verify(&long).await.unwrap_err(), TokenError::TooLong);
}

/// LinkedIn's ID tokens have no nonce.
#[tokio::test]
async fn missing_nonce_is_accepted_if_it_is_not_required() {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
    for (nonce, expected) in [
        (Value::Null, None),
        (json!("n-1"), None),
        (json!("n-2"), Some(TokenError::Nonce)),
        (json!(""), Some(TokenError::ClaimMissing("nonce"))),
    ] {
        let token = RSA.token("p1", &with(claims(), "nonce", nonce));
        assert_eq!(verifier.verify(&token, "n-1", false).await.err(), expected);
    }
}

#[tokio::test]
async fn email_is_verified_only_if_the_provider_says_so() {
    for (flag, expected) in [
        (json!(true), true),
        (json!("true"), true),
        (json!(false), false),
        (json!("yes"), false),
        (json!(1), false),
        (Value::Null, false),
    ] {
        assert_eq!(
            verify(&with(claims(), "email_verified", flag))
                .await
                .expect("accepted")
                .email_verified,
            expected
        );
    }
}

#[tokio::test]
async fn id_token_for_another_client_is_rejected() {
    for (name, value, expected) in [
        ("iss", json!("https://other.test"), TokenError::Issuer),
        ("aud", json!("other"), TokenError::Client),
        ("aud", json!([]), TokenError::Client),
        ("aud", json!([CLIENT, "other"]), TokenError::AuthorizedParty),
        ("azp", json!("other"), TokenError::AuthorizedParty),
        ("nonce", json!("n-2"), TokenError::Nonce),
        ("nonce", Value::Null, TokenError::ClaimMissing("nonce")),
        ("aud", Value::Null, TokenError::ClaimMissing("aud")),
        ("sub", Value::Null, TokenError::ClaimMissing("sub")),
        ("exp", Value::Null, TokenError::ClaimMissing("exp")),
        ("iat", Value::Null, TokenError::ClaimMissing("iat")),
        ("exp", json!(NOW_S), TokenError::Expired),
        ("exp", json!(NOW_S as f64 + 0.5), TokenError::Expired),
        ("iat", json!(NOW_S + 61), TokenError::NotYetValid),
    ] {
        assert_eq!(
            verify(&with(claims(), name, value.clone()))
                .await
                .unwrap_err(),
            expected,
            "{name} {value}"
        );
    }
}

#[tokio::test]
async fn several_audiences_require_azp() {
    let several = with(claims(), "aud", json!(["other", CLIENT]));
    assert!(verify(&with(several, "azp", json!(CLIENT))).await.is_ok());
    assert!(
        verify(&with(claims(), "aud", json!([CLIENT])))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn forged_id_token_is_rejected() {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
    let forged = OTHER_RSA.token("p1", &claims());
    assert_eq!(
        verifier.verify(&forged, "n-1", true).await.unwrap_err(),
        TokenError::Signature
    );
}

/// OpenID Connect Core 1.0 section 10.1: a provider with one key may omit `kid`.
#[tokio::test]
async fn id_token_without_kid_uses_the_only_key() {
    let without_kid = |signer: &Signer| signer.token_with(&json!({"alg": signer.alg()}), &claims());
    let unnamed = with(RSA.jwk("p1"), "kid", Value::Null);
    let encryption = with(OTHER_RSA.jwk("e1"), "use", json!("enc"));
    let ec = Signer::ec();
    for (keys, expected) in [
        (vec![RSA.jwk("p1")], None),
        (vec![unnamed.clone()], None),
        (vec![encryption, RSA.jwk("p1"), ec.jwk("p2")], None),
        (
            vec![RSA.jwk("p1"), OTHER_RSA.jwk("p2")],
            Some(TokenError::KeyIdMissing),
        ),
        (
            vec![unnamed, OTHER_RSA.jwk("p2")],
            Some(TokenError::KeyIdMissing),
        ),
        (vec![OTHER_RSA.jwk("p1")], Some(TokenError::Signature)),
        (vec![ec.jwk("p1")], Some(TokenError::KeyUnknown)),
        (vec![], Some(TokenError::KeyUnknown)),
    ] {
        let server = Server::start(Behaviour::Serve(jwks(&keys))).await;
        let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock(), LEEWAY);
        let refusal = verifier.verify(&without_kid(&RSA), "n-1", true).await.err();
        assert_eq!(refusal, expected, "{keys:?}");
    }
    for kid in [json!(""), json!(7), Value::Null] {
        let token = RSA.token_with(&json!({"alg": "RS256", "kid": kid}), &claims());
        let (server, clock) = provider().await;
        let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
        assert_eq!(
            verifier.verify(&token, "n-1", true).await.unwrap_err(),
            TokenError::KeyIdMissing
        );
    }
}

#[tokio::test]
async fn id_token_without_kid_follows_a_key_change() {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
    let token = |signer: &Signer| signer.token_with(&json!({"alg": "RS256"}), &claims());
    assert!(verifier.verify(&token(&RSA), "n-1", true).await.is_ok());
    server.becomes(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("p2")])));
    assert!(
        verifier
            .verify(&token(&OTHER_RSA), "n-1", true)
            .await
            .is_ok()
    );
    assert_eq!(
        verifier
            .verify(&token(&RSA), "n-1", true)
            .await
            .unwrap_err(),
        TokenError::Signature
    );
}

#[tokio::test]
async fn concurrent_sign_ins_share_one_fetch() {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock, LEEWAY);
    let token = RSA.token("p1", &claims());
    let all = join_all((0..20).map(|_| verifier.verify(&token, "n-1", true))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn provider_keys_are_refreshed() {
    let (server, clock) = provider().await;
    let verifier = OidcVerifier::new(PROVIDER, CLIENT, server.url.clone(), clock.clone(), LEEWAY);
    let claims = with(claims(), "exp", json!(NOW_S + 86_400));
    let token = RSA.token("p1", &claims);
    assert!(verifier.verify(&token, "n-1", true).await.is_ok());
    server.becomes(Behaviour::Close);
    clock.advance(Duration::from_secs(3600));
    assert!(
        verifier.verify(&token, "n-1", true).await.is_ok(),
        "the last fetched keys are used"
    );
    server.becomes(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("p2")])));
    assert!(
        verifier
            .verify(&OTHER_RSA.token("p2", &claims), "n-1", true)
            .await
            .is_ok()
    );
    assert_eq!(
        verifier.verify(&token, "n-1", true).await.unwrap_err(),
        TokenError::KeyUnknown
    );
    assert_eq!(verifier.status().keys, ["p2"]);
}
