//! The public keys of an issuer for the admin API.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::clock::Timestamp;
use crate::token::jwk::VerificationKey;

/// A public key.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicKeyInfo {
    /// The key id.
    pub kid: String,
    /// The algorithm that tokens must have.
    pub alg: String,
    /// The key type: `RSA`, `EC` or `OKP`.
    pub kty: Option<String>,
    /// `use`, if the set states it.
    pub r#use: Option<String>,
    /// The public members of the JWK.
    pub jwk: Map<String, Value>,
    /// Time of the fetch, of this process, that first contained the key.
    pub first_seen: Timestamp,
}

impl PublicKeyInfo {
    pub(super) fn of(key_id: &str, key: &VerificationKey) -> Self {
        let jwk = key.public_jwk.clone();
        let text = |name: &str| jwk.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            kid: key_id.to_owned(),
            alg: format!("{:?}", key.algorithm),
            kty: text("kty"),
            r#use: text("use"),
            jwk,
            first_seen: key.first_seen(),
        }
    }
}
