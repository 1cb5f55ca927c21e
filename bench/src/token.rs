//! Tokens in Cognito's format, their JWKS and their public key.

use std::io;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
use postern_common::Clock;
use serde_json::{Value, json};

/// Client id of the actor pool.
pub const CLIENT_ID: &str = "2lq8p5s0example9client0id1";

/// Client id of the service pool.
pub const SERVICE_CLIENT_ID: &str = "service0client";

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

/// The signing keys of one run, one per algorithm.
pub struct TokenSigner {
    rsa: Option<KeyPair>,
    p256: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
    random: SystemRandom,
    /// JWKS of the issuers.
    pub jwks: String,
    /// Public RSA key for HAProxy's `jwt_verify`.
    pub public_pem: String,
}

impl TokenSigner {
    /// Generates the keys.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate() -> io::Result<Self> {
        Self::with(Some(KeyPair::generate(KeySize::Rsa2048).map_err(failed)?))
    }

    /// Generates all keys except the RSA key, which takes a tenth of a second, and ten seconds
    /// under an instruction counter.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn without_rsa() -> io::Result<Self> {
        Self::with(None)
    }

    fn with(rsa: Option<KeyPair>) -> io::Result<Self> {
        let p256 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(failed)?;
        let ed25519 = Ed25519KeyPair::generate().map_err(failed)?;
        let mut public_pem = String::new();
        let mut keys = vec![
            jwk(&p256),
            json!({
                "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "bench-ed25519",
                "x": BASE64.encode(ed25519.public_key().as_ref()),
            }),
        ];
        if let Some(rsa) = &rsa {
            let spki = AsDer::<PublicKeyX509Der<'_>>::as_der(rsa.public_key()).map_err(failed)?;
            public_pem = pem("PUBLIC KEY", spki.as_ref());
            let n = BASE64.encode(rsa.public_key().modulus().big_endian_without_leading_zero());
            let e = BASE64.encode(
                rsa.public_key()
                    .exponent()
                    .big_endian_without_leading_zero(),
            );
            keys.push(
                json!({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "bench-rsa", "n": n, "e": e}),
            );
        }
        let jwks = json!({"keys": keys}).to_string();
        Ok(Self {
            rsa,
            p256,
            ed25519,
            random: SystemRandom::new(),
            jwks,
            public_pem,
        })
    }

    /// Signs a user's access token of about 850 bytes, valid for an hour. `serial` makes it unique.
    ///
    /// # Errors
    /// Signing fails.
    pub fn token(&self, issuer: &str, serial: u64) -> io::Result<String> {
        self.sign(SigningAlgorithm::Rs256, &user(issuer, serial))
    }

    /// Signs a user's access token with another algorithm.
    ///
    /// # Errors
    /// Signing fails.
    pub fn token_by(
        &self,
        algorithm: SigningAlgorithm,
        issuer: &str,
        serial: u64,
    ) -> io::Result<String> {
        self.sign(algorithm, &user(issuer, serial))
    }

    /// Signs an access token as long as one with RS256 at a hundredth of its cost, for filling
    /// caches.
    ///
    /// # Errors
    /// Signing fails.
    pub fn cheap_token(&self, issuer: &str, serial: u64) -> io::Result<String> {
        let mut claims = user(issuer, serial);
        // Difference to an Ed25519 signature, in bytes before base64.
        claims["device_key"] = json!("d".repeat(256 - 64 - 16));
        self.sign(SigningAlgorithm::EdDsa, &claims)
    }

    /// Signs a service's ID token.
    ///
    /// # Errors
    /// Signing fails.
    pub fn service_token(&self, issuer: &str, service: &str) -> io::Result<String> {
        let now = Clock::system().now().unix_seconds();
        let claims = json!({
            "sub": "5a8ca528-4931-4254-9273-ea5ee853f271", "iss": issuer, "aud": SERVICE_CLIENT_ID,
            "token_use": "id", "custom:service_id": service, "auth_time": now, "exp": now + 3600, "iat": now,
        });
        self.sign(SigningAlgorithm::Rs256, &claims)
    }

    fn sign(&self, algorithm: SigningAlgorithm, claims: &Value) -> io::Result<String> {
        let (alg, kid) = algorithm.names();
        let header = json!({"kid": kid, "alg": alg});
        let input = format!(
            "{}.{}",
            BASE64.encode(header.to_string()),
            BASE64.encode(claims.to_string())
        );
        let signature = match algorithm {
            SigningAlgorithm::Rs256 => {
                let rsa = self
                    .rsa
                    .as_ref()
                    .ok_or_else(|| io::Error::other("no RSA key"))?;
                let mut signature = vec![0; rsa.public_modulus_len()];
                rsa.sign(
                    &RSA_PKCS1_SHA256,
                    &self.random,
                    input.as_bytes(),
                    &mut signature,
                )
                .map_err(failed)?;
                signature
            }
            SigningAlgorithm::Es256 => self
                .p256
                .sign(&self.random, input.as_bytes())
                .map_err(failed)?
                .as_ref()
                .to_vec(),
            SigningAlgorithm::EdDsa => self.ed25519.sign(input.as_bytes()).as_ref().to_vec(),
        };
        Ok(format!("{input}.{}", BASE64.encode(signature)))
    }
}

impl SigningAlgorithm {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Rs256 => ("RS256", "bench-rsa"),
            Self::Es256 => ("ES256", "bench-p256"),
            Self::EdDsa => ("EdDSA", "bench-ed25519"),
        }
    }
}

fn user(issuer: &str, serial: u64) -> Value {
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

fn jwk(p256: &EcdsaKeyPair) -> Value {
    // An uncompressed point: 4, then x and y of 32 bytes each.
    let point = p256.public_key().as_ref();
    let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..65]));
    json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "bench-p256", "x": x, "y": y})
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}
