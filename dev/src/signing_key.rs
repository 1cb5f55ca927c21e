//! RS256 signing keys: RSA 2048.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    KeyPair, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) struct SigningKey {
    pair: RsaKeyPair,
    id: String,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid RSA key")]
pub(crate) struct KeyError;

// === impl SigningKey ===

impl SigningKey {
    /// Generates a key in PKCS #8. Takes up to a second of CPU time and must not run on an async
    /// worker thread.
    pub(crate) fn generate() -> Result<Vec<u8>, KeyError> {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).map_err(|_| KeyError)?;
        let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|_| KeyError)?;
        Ok(der.as_ref().to_vec())
    }

    /// Reads a key in PKCS #8. Its id covers `scope`, so that one key has distinct ids.
    pub(crate) fn from_pkcs8(pkcs8: &[u8], scope: &str) -> Result<Self, KeyError> {
        let pair = RsaKeyPair::from_pkcs8(pkcs8).map_err(|_| KeyError)?;
        let mut digest = Sha256::new_with_prefix(pair.public_key().as_ref());
        digest.update(scope);
        let id = URL_SAFE_NO_PAD.encode(digest.finalize());
        Ok(Self { pair, id })
    }

    /// Returns the public key as a JWK (RFC 7517).
    pub(crate) fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let key = self.pair.public_key();
        let n = encode(key.modulus().big_endian_without_leading_zero());
        let e = encode(key.exponent().big_endian_without_leading_zero());
        json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id, "n": n, "e": e })
    }

    /// Returns a compact JWS (RFC 7515) of the claims, without a type, as Amazon Cognito's.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({ "alg": "RS256", "kid": self.id });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let input = format!("{}.{}", encode(&header), encode(claims));
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                input.as_bytes(),
                &mut signature,
            )
            .expect(
                "the buffer is as long as the modulus and the key was checked when it was read",
            );
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Returns the claims of a token if this key signed it.
    pub(crate) fn verify(&self, token: &str) -> Option<Value> {
        let (input, signature) = token.rsplit_once('.')?;
        let (header, claims) = input.split_once('.')?;
        let key =
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.pair.public_key().as_ref());
        key.verify(input.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?)
            .ok()?;
        let read =
            |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
        (read(header)?["kid"] == *self.id).then(|| read(claims))?
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
