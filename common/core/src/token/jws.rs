//! Strict parsing of compact JWS (RFC 7515).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;

use super::TokenError;
use super::strict_json::{JsonValue, StrictObject};

/// Header parameters that would let a token select its own key, change the signed content, or
/// change its interpretation (RFC 7515 sections 4.1.2 to 4.1.6 and 4.1.11, RFC 7797, RFC 7516
/// section 4.1.3).
const REJECTED_PARAMETERS: [&str; 7] = ["crit", "jku", "x5u", "x5c", "jwk", "b64", "zip"];

/// Header parameters that are ignored and must be text, which `jsonwebtoken` requires as well.
const TEXT_PARAMETERS: [&str; 7] = ["typ", "cty", "x5t", "x5t#S256", "enc", "url", "nonce"];

/// Maximum length of a `kid` in bytes.
const MAX_KEY_ID_BYTES: usize = 512;

/// A compact JWS (RFC 7515 section 7.1), parsed and not verified.
pub(super) struct CompactJws<'a> {
    /// RS256, ES256 or EdDSA.
    pub(super) algorithm: Algorithm,
    /// `kid`, if present.
    pub(super) key_id: Option<String>,
    /// The whole token.
    pub(super) token: &'a str,
    payload: Vec<u8>,
}

impl<'a> CompactJws<'a> {
    /// Parses a token. The payload is not interpreted: before the signature is verified, only `iss`
    /// may be used, to select the keys.
    pub(super) fn read(token: &'a str) -> Result<Self, TokenError> {
        let (header, payload, signature) = parts(token)?;
        let (algorithm, key_id) = read_header(&decode(header)?)?;
        let payload = decode(payload)?;
        decode(signature)?;
        Ok(Self {
            algorithm,
            key_id,
            token,
            payload,
        })
    }

    /// Parses the claims strictly.
    pub(super) fn claims(&self) -> Result<StrictObject<'_>, TokenError> {
        StrictObject::read(&self.payload)
    }
}

fn parts(token: &str) -> Result<(&str, &str, &str), TokenError> {
    let mut parts = token.split('.');
    let three = (parts.next(), parts.next(), parts.next());
    match (three, parts.count()) {
        ((Some(header), Some(payload), Some(signature)), 0) => Ok((header, payload, signature)),
        ((Some(_), Some(_), Some(_)), 2) => Err(TokenError::Encrypted),
        _ => Err(TokenError::NotThreeParts),
    }
}

/// Decodes base64url without padding. Padding and non-zero trailing bits are rejected, so that a
/// token has one spelling.
fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    let decoded = URL_SAFE_NO_PAD.decode(part);
    decoded.map_err(|_| TokenError::NotBase64Url)
}

fn read_header(text: &[u8]) -> Result<(Algorithm, Option<String>), TokenError> {
    let header = StrictObject::read(text)?;
    if REJECTED_PARAMETERS.iter().any(|name| header.contains(name)) {
        return Err(TokenError::HeaderParameter);
    }
    let is_text = |name: &&str| header.get(name).is_none_or(JsonValue::is_text);
    if !TEXT_PARAMETERS.iter().all(is_text) {
        return Err(TokenError::HeaderType);
    }
    let name = header.get("alg").and_then(JsonValue::as_text);
    let algorithm = algorithm(name.ok_or(TokenError::HeaderType)?).ok_or(TokenError::Algorithm)?;
    let Some(key_id) = header.get("kid") else {
        return Ok((algorithm, None));
    };
    match key_id.as_text() {
        Some(key_id) if !key_id.is_empty() && key_id.len() <= MAX_KEY_ID_BYTES => {
            Ok((algorithm, Some(key_id.to_owned())))
        }
        Some(_) | None => Err(TokenError::KeyIdMissing),
    }
}

/// Returns an accepted algorithm by name (RFC 7518 section 3.1, RFC 8037 section 3.1).
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    match name {
        "RS256" => Some(Algorithm::RS256),
        "ES256" => Some(Algorithm::ES256),
        "EdDSA" => Some(Algorithm::EdDSA),
        _ => None,
    }
}
