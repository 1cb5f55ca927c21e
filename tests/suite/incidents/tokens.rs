//! An issuer of tokens, whose keys and clock are wrong on demand.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::Clock;
use serde_json::{Value, json};

use postern_harness::Origin;

/// Id of the key in the JWKS.
pub(super) const KEY_ID: &str = "key-1";

/// Lifetime of a token, in seconds.
const LIFETIME_S: i64 = 3600;

/// An issuer with one key, and the server of its JWKS.
pub(super) struct Issuer {
    key: Ed25519KeyPair,
    server: Origin,
}

impl Issuer {
    pub(super) async fn start() -> Self {
        let key = Ed25519KeyPair::generate().expect("a key");
        let x = URL_SAFE_NO_PAD.encode(key.public_key().as_ref());
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": KEY_ID, "x": x});
        let server = Origin::answering(&[("", 200, json!({"keys": [jwk]}))]).await;
        Self { key, server }
    }

    /// Returns the table that makes the gateway trust it.
    pub(super) fn table(&self) -> String {
        let url = self.server.url();
        format!(
            "[[identity.issuer]]\nkind = \"user\"\nissuer = \"{url}\"\njwks_url = \"{url}/keys\"\nclients = [\"shop\"]\n"
        )
    }

    /// Answers further requests of the keys with 503.
    pub(super) fn lose_keys(&self) {
        self.server.set_answers(&[("", 503, json!({}))]);
    }

    /// Returns a token with this `kid`, issued `ahead_s` seconds in the future.
    pub(super) fn token(&self, key_id: &str, ahead_s: i64) -> String {
        let issued_at = Clock::system().now().unix_seconds() + ahead_s;
        let claims = json!({"iss": self.server.url(), "sub": "ada", "client_id": "shop", "token_use": "access",
            "iat": issued_at, "exp": issued_at + LIFETIME_S});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "EdDSA", "kid": key_id});
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}
