use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;

use super::strict::{Json, Object};
use super::{MAX_TOKEN_BYTES, Refusal};

/// Parameters that would let a token choose its own key, change what is signed, or be understood
/// otherwise than read here (RFC 7515 sections 4.1.2 to 4.1.6 and 4.1.11, RFC 7797, RFC 7516
/// section 4.1.3).
const REFUSED_PARAMETERS: [&str; 7] = ["crit", "jku", "x5u", "x5c", "jwk", "b64", "zip"];

/// Longest `kid` that is looked for, in bytes.
const MAX_KEY_ID_BYTES: usize = 512;

/// A compact JWS (RFC 7515 section 7.1), read and not yet verified.
pub(super) struct Jws<'a> {
    /// Of RS256, ES256, EdDSA.
    pub(super) algorithm: Algorithm,
    /// `kid`, unless it is left out.
    pub(super) key_id: Option<String>,
    /// What the signature is over: header and payload as they came.
    pub(super) signing_input: &'a str,
    /// The payload, decoded.
    pub(super) payload: Vec<u8>,
    /// The signature, decoded.
    pub(super) signature: Vec<u8>,
}

impl<'a> Jws<'a> {
    /// Reads a token. Its payload stays unread: nothing in it counts before the signature is
    /// verified but the issuer, which only selects the keys.
    pub(super) fn read(token: &'a str) -> Result<Self, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::TooLong);
        }
        let (header, payload, signature) = parts(token)?;
        let (algorithm, key_id) = read_header(&decode(header)?)?;
        let payload = decode(payload)?;
        let signing_input = &token[..token.len() - signature.len() - 1];
        Ok(Self {
            algorithm,
            key_id,
            signing_input,
            payload,
            signature: decode(signature)?,
        })
    }

    /// The claims, strictly read.
    pub(super) fn claims(&self) -> Result<Object<'_>, Refusal> {
        Object::read(&self.payload)
    }
}

fn parts(token: &str) -> Result<(&str, &str, &str), Refusal> {
    let mut parts = token.split('.');
    let three = (parts.next(), parts.next(), parts.next());
    match (three, parts.count()) {
        ((Some(header), Some(payload), Some(signature)), 0) => Ok((header, payload, signature)),
        ((Some(_), Some(_), Some(_)), 2) => Err(Refusal::Encrypted),
        _ => Err(Refusal::NotThreeParts),
    }
}

/// Base64url without padding; the engine refuses padding and stray bits, so that one token has one
/// spelling.
fn decode(part: &str) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| Refusal::NotBase64Url)
}

fn read_header(text: &[u8]) -> Result<(Algorithm, Option<String>), Refusal> {
    let header = Object::read(text)?;
    if REFUSED_PARAMETERS.iter().any(|name| header.has(name)) {
        return Err(Refusal::HeaderParameter);
    }
    if ["typ", "cty"]
        .iter()
        .any(|name| header.get(name).is_some_and(|value| !value.is_text()))
    {
        return Err(Refusal::HeaderType);
    }
    let name = header
        .get("alg")
        .and_then(Json::as_text)
        .ok_or(Refusal::HeaderType)?;
    let algorithm = algorithm(name).ok_or(Refusal::Algorithm)?;
    let Some(key_id) = header.get("kid") else {
        return Ok((algorithm, None));
    };
    match key_id.as_text() {
        Some(key_id) if !key_id.is_empty() && key_id.len() <= MAX_KEY_ID_BYTES => {
            Ok((algorithm, Some(key_id.to_owned())))
        }
        Some(_) | None => Err(Refusal::KeyIdMissing),
    }
}

/// The algorithms that are accepted, by their names (RFC 7518 section 3.1, RFC 8037 section 3.1).
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    match name {
        "RS256" => Some(Algorithm::RS256),
        "ES256" => Some(Algorithm::ES256),
        "EdDSA" => Some(Algorithm::EdDSA),
        _ => None,
    }
}
