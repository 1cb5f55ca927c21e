use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::fixtures::{Behaviour, NOW_S, OTHER_RSA, RSA, Server, Signer, clock, keys, with};
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

struct Provider {
    server: Server,
    clock: Clock,
    verifier: Arc<OidcVerifier>,
}

impl Provider {
    async fn new(served: &[Value]) -> Self {
        let (server, clock) = (Server::start(keys(served)).await, clock());
        let url = server.url.clone();
        let verifier = OidcVerifier::new(PROVIDER, CLIENT, url, clock.clone(), LEEWAY);
        Self {
            server,
            clock,
            verifier,
        }
    }

    async fn usual() -> Self {
        Self::new(&[RSA.jwk("p1")]).await
    }

    async fn verify(&self, token: &str) -> Result<IdToken, TokenError> {
        self.verifier.verify(token, "n-1", true).await
    }

    async fn rejection(&self, token: &str) -> Option<TokenError> {
        self.verify(token).await.err()
    }
}

async fn verify(claims: &Value) -> Result<IdToken, TokenError> {
    let token = RSA.token("p1", claims);
    Provider::usual().await.verify(&token).await
}

#[tokio::test]
async fn valid_id_token_is_an_identity() {
    let identity = verify(&claims()).await.expect("accepted");
    assert_eq!((&*identity.issuer, &*identity.subject), (PROVIDER, "42"));
    assert_eq!(identity.email.as_deref(), Some("ada@example.com"));
    assert!(identity.email_verified);
    assert_eq!(identity.name.as_deref(), Some("Ada"));
    assert_eq!(identity.claims["nonce"], "n-1");
}

#[tokio::test]
async fn texts_for_pages_are_harmless() {
    const HTTPS_PICTURE: &str = "https://a.test/p.png";
    let long = "n".repeat(300);
    for (name, value, expected) in [
        ("name", "Zoë Ångström 😀", Some("Zoë Ångström 😀")),
        ("name", "A\u{0}d\na\u{202e}x", Some("Adax")),
        ("name", "\u{7}", None),
        ("name", &*long, Some(&long[..256])),
        ("picture", HTTPS_PICTURE, Some(HTTPS_PICTURE)),
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
    let provider = Provider::usual().await;
    for (nonce, expected) in [
        (Value::Null, None),
        (json!("n-1"), None),
        (json!("n-2"), Some(TokenError::Nonce)),
        (json!(""), Some(TokenError::ClaimMissing("nonce"))),
    ] {
        let token = RSA.token("p1", &with(claims(), "nonce", nonce));
        let verified = provider.verifier.verify(&token, "n-1", false).await;
        assert_eq!(verified.err(), expected);
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
        let identity = verify(&with(claims(), "email_verified", flag)).await;
        assert_eq!(identity.expect("accepted").email_verified, expected);
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
        let verified = verify(&with(claims(), name, value.clone())).await;
        assert_eq!(verified.err(), Some(expected), "{name} {value}");
    }
}

#[tokio::test]
async fn several_audiences_require_azp() {
    let several = with(claims(), "aud", json!(["other", CLIENT]));
    assert!(verify(&with(several, "azp", json!(CLIENT))).await.is_ok());
    let one = with(claims(), "aud", json!([CLIENT]));
    assert!(verify(&one).await.is_ok());
}

#[tokio::test]
async fn forged_id_token_is_rejected() {
    let forged = OTHER_RSA.token("p1", &claims());
    let rejection = Provider::usual().await.rejection(&forged).await;
    assert_eq!(rejection, Some(TokenError::Signature));
}

/// OpenID Connect Core 1.0 section 10.1: a provider with one key may omit `kid`.
#[tokio::test]
async fn id_token_without_kid_uses_the_only_key() {
    let without_kid = |signer: &Signer| signer.token_with(&json!({"alg": signer.alg()}), &claims());
    let unnamed = with(RSA.jwk("p1"), "kid", Value::Null);
    let encryption = with(OTHER_RSA.jwk("e1"), "use", json!("enc"));
    let (ec, several) = (Signer::ec(), Some(TokenError::KeyIdMissing));
    for (served, expected) in [
        (vec![RSA.jwk("p1")], None),
        (vec![unnamed.clone()], None),
        (vec![encryption, RSA.jwk("p1"), ec.jwk("p2")], None),
        (vec![RSA.jwk("p1"), OTHER_RSA.jwk("p2")], several),
        (vec![unnamed, OTHER_RSA.jwk("p2")], several),
        (vec![OTHER_RSA.jwk("p1")], Some(TokenError::Signature)),
        (vec![ec.jwk("p1")], Some(TokenError::KeyUnknown)),
        (vec![], Some(TokenError::KeyUnknown)),
    ] {
        let provider = Provider::new(&served).await;
        let rejection = provider.rejection(&without_kid(&RSA)).await;
        assert_eq!(rejection, expected, "{served:?}");
    }
    for kid in [json!(""), json!(7), Value::Null] {
        let token = RSA.token_with(&json!({"alg": "RS256", "kid": kid}), &claims());
        let rejection = Provider::usual().await.rejection(&token).await;
        assert_eq!(rejection, Some(TokenError::KeyIdMissing));
    }
}

#[tokio::test]
async fn id_token_without_kid_follows_a_key_change() {
    let provider = Provider::usual().await;
    let token = |signer: &Signer| signer.token_with(&json!({"alg": "RS256"}), &claims());
    assert!(provider.verify(&token(&RSA)).await.is_ok());
    let changed = keys(&[OTHER_RSA.jwk("p2")]);
    provider.server.becomes(changed);
    assert!(provider.verify(&token(&OTHER_RSA)).await.is_ok());
    let rejection = provider.rejection(&token(&RSA)).await;
    assert_eq!(rejection, Some(TokenError::Signature));
}

#[tokio::test]
async fn concurrent_sign_ins_share_one_fetch() {
    let provider = Provider::usual().await;
    let token = RSA.token("p1", &claims());
    let all = join_all((0..20).map(|_| provider.verify(&token))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(provider.server.requests(), 1);
}

#[tokio::test]
async fn provider_keys_are_refreshed() {
    let provider = Provider::usual().await;
    let claims = with(claims(), "exp", json!(NOW_S + 86_400));
    let [token, next] = [(&RSA, "p1"), (&OTHER_RSA, "p2")].map(|(key, id)| key.token(id, &claims));
    assert!(provider.verify(&token).await.is_ok());
    provider.server.becomes(Behaviour::Close);
    provider.clock.advance(Duration::from_secs(3600));
    let in_an_outage = provider.verify(&token).await;
    assert!(in_an_outage.is_ok(), "the last fetched keys are used");
    let changed = keys(&[OTHER_RSA.jwk("p2")]);
    provider.server.becomes(changed);
    assert!(provider.verify(&next).await.is_ok());
    let rejection = provider.rejection(&token).await;
    assert_eq!(rejection, Some(TokenError::KeyUnknown));
    assert_eq!(provider.verifier.source.status().keys, ["p2"]);
}
