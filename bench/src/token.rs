//! Access tokens in Cognito's format, and the JWKS of their issuer.

use std::io;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use postern_core::Clock;
use serde_json::{Value, json};

/// The client id of all tokens.
pub const CLIENT_ID: &str = "2lq8p5s0example9client0id1";

const KEY_ID: &str = "bench";

/// The accepted algorithms.
#[derive(Clone, Copy, Debug)]
pub enum SigningAlgorithm {
    /// RSA, 2048 bits.
    Rs256,
    /// P-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// The signing key of an issuer.
pub enum TokenSigner {
    /// A key for RS256.
    Rsa(RsaKeyPair),
    /// A key for ES256.
    P256(EcdsaKeyPair),
    /// A key for `EdDSA`.
    Ed25519(Ed25519KeyPair),
}

impl TokenSigner {
    /// Generates a key.
    pub fn generate(algorithm: SigningAlgorithm) -> io::Result<Self> {
        Ok(match algorithm {
            SigningAlgorithm::Rs256 => {
                Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).map_err(failed)?)
            }
            SigningAlgorithm::Es256 => Self::P256(
                EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(failed)?,
            ),
            SigningAlgorithm::EdDsa => Self::Ed25519(Ed25519KeyPair::generate().map_err(failed)?),
        })
    }

    /// Returns the key set of the issuer.
    pub fn jwks(&self) -> String {
        let key = match self {
            Self::Rsa(key) => {
                let key = key.public_key();
                let n = BASE64.encode(key.modulus().big_endian_without_leading_zero());
                let e = BASE64.encode(key.exponent().big_endian_without_leading_zero());
                json!({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": KEY_ID, "n": n, "e": e})
            }
            Self::P256(key) => {
                // An uncompressed point: 4, then x and y of 32 bytes each.
                let point = key.public_key().as_ref();
                let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..65]));
                json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": KEY_ID, "x": x, "y": y})
            }
            Self::Ed25519(key) => {
                let x = BASE64.encode(key.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": KEY_ID, "x": x})
            }
        };
        json!({"keys": [key]}).to_string()
    }

    /// Signs a user's access token, valid for an hour; about 850 bytes with RS256. `serial` makes
    /// it unique.
    pub fn token(&self, issuer: &str, serial: u64) -> io::Result<String> {
        let alg = match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        };
        let header = json!({"kid": KEY_ID, "alg": alg}).to_string();
        let input = format!(
            "{}.{}",
            BASE64.encode(header),
            BASE64.encode(claims(issuer, serial).to_string())
        );
        let (random, bytes) = (SystemRandom::new(), input.as_bytes());
        let signature = match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature)
                    .map_err(failed)?;
                signature
            }
            Self::P256(key) => key.sign(&random, bytes).map_err(failed)?.as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(bytes).as_ref().to_vec(),
        };
        Ok(format!("{input}.{}", BASE64.encode(signature)))
    }
}

fn claims(issuer: &str, serial: u64) -> Value {
    let now = Clock::system().now().unix_seconds();
    json!({
        "sub": "7d8ca528-4931-4254-9273-ea5ee853f271", "iss": issuer, "client_id": CLIENT_ID,
        "origin_jti": "aa5a4a2c-7a3e-4b5c-9d5b-2f0c4b8f4a11", "event_id": format!("{serial:032}"),
        "token_use": "access", "scope": "aws.cognito.signin.user.admin", "auth_time": now,
        "exp": now + 3600, "iat": now, "jti": format!("{serial:08}-1e0c-4a6e-b3f2-4f3a1c2b5d6e"),
        "username": "7d8ca528-4931-4254-9273-ea5ee853f271",
    })
}

fn failed(_: aws_lc_rs::error::Unspecified) -> io::Error {
    io::Error::other("the key cannot be generated or used")
}
