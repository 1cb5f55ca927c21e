//! Keys of the stubs.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// An Ed25519 key that signs JWTs.
pub(crate) struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            pair: Ed25519KeyPair::generate().expect("a key"),
        }
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({ "alg": "EdDSA", "typ": "JWT", "kid": self.id });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    pub(crate) fn jwks(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.id, "x": x }] })
    }
}
