//! A Cognito-shaped RS256 access token, its JWKS and its public key.

use std::io;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use postern_common::Clock;
use serde_json::json;

/// Who the token is for.
pub(crate) const CLIENT_ID: &str = "2lq8p5s0example9client0id1";

/// A signing key of the run.
pub(crate) struct Signer {
    key: EncodingKey,
    /// The JWKS that the issuer publishes.
    pub(crate) jwks: String,
    /// The public key for HAProxy's `jwt_verify`.
    pub(crate) public_pem: String,
}

impl Signer {
    /// Makes a 2048-bit RSA key.
    pub(crate) fn generate() -> io::Result<Self> {
        let failed = |_| io::Error::other("cannot make an RSA key");
        let pair = KeyPair::generate(KeySize::Rsa2048).map_err(failed)?;
        let pkcs8 = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).map_err(failed)?;
        let spki = AsDer::<PublicKeyX509Der<'_>>::as_der(pair.public_key()).map_err(failed)?;
        let key = EncodingKey::from_rsa_pem(pem("PRIVATE KEY", pkcs8.as_ref()).as_bytes())
            .map_err(io::Error::other)?;
        let n = URL_SAFE_NO_PAD.encode(pair.public_key().modulus().big_endian_without_leading_zero());
        let e = URL_SAFE_NO_PAD.encode(pair.public_key().exponent().big_endian_without_leading_zero());
        let jwks =
            json!({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "bench-1", "n": n, "e": e}]});
        Ok(Self { key, jwks: jwks.to_string(), public_pem: pem("PUBLIC KEY", spki.as_ref()) })
    }

    /// A token of about 850 bytes that is good for an hour; `serial` makes it differ from every other.
    pub(crate) fn token(&self, issuer: &str, serial: u64) -> io::Result<String> {
        let now = Clock::system().now().unix_seconds();
        let mut header = Header::new(Algorithm::RS256);
        header.kid = Some("bench-1".to_owned());
        let claims = json!({
            "sub": "7d8ca528-4931-4254-9273-ea5ee853f271", "iss": issuer, "client_id": CLIENT_ID,
            "origin_jti": "aa5a4a2c-7a3e-4b5c-9d5b-2f0c4b8f4a11", "event_id": format!("{serial:032}"),
            "token_use": "access", "scope": "aws.cognito.signin.user.admin", "auth_time": now,
            "exp": now + 3600, "iat": now, "jti": format!("{serial:08}-1e0c-4a6e-b3f2-4f3a1c2b5d6e"),
            "username": "7d8ca528-4931-4254-9273-ea5ee853f271",
        });
        jsonwebtoken::encode(&header, &claims, &self.key).map_err(io::Error::other)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
