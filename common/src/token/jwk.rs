use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};

use super::jws::{self, Jws};
use super::{Refusal, roca};
use crate::clock::Timestamp;

/// RSA keys below this many bits are refused (RFC 7518 section 3.3); above 8192 a signature costs too much.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A key that signatures are checked with, built once.
pub(super) struct Key {
    algorithm: Algorithm,
    decoding: DecodingKey,
    /// Public key octets, to see whether a refreshed key is the same.
    material: Vec<u8>,
    /// Unix milliseconds from which it verifies nothing more: later with every refresh that still has the key,
    /// at once when one no longer has it.
    good_until: AtomicI64,
    /// The encoded header and its dot, of the first token that verified. An issuer writes the same one into every
    /// token, so that remembered tokens need not repeat it.
    header: OnceLock<Box<str>>,
}

/// A key of a JWKS that is usable, with its `kid`.
pub(super) struct NamedKey {
    pub(super) key_id: String,
    pub(super) key: Key,
}

// === impl Key ===

impl Key {
    fn new(algorithm: Algorithm, decoding: DecodingKey, material: Vec<u8>) -> Self {
        Self { algorithm, decoding, material, good_until: AtomicI64::new(i64::MIN), header: OnceLock::new() }
    }

    /// Checks the signature; the algorithm must be the one of this key.
    pub(super) fn verify(&self, jws: &Jws<'_>) -> Result<(), Refusal> {
        if jws.algorithm != self.algorithm {
            return Err(Refusal::AlgorithmOfKey);
        }
        match jsonwebtoken::crypto::verify(
            jws.signature,
            jws.signing_input.as_bytes(),
            &self.decoding,
            self.algorithm,
        ) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Refusal::Signature),
        }
    }

    /// A verified token without its header, where that is the one that this key keeps; else the whole token.
    pub(super) fn without_header<'a>(&self, token: &'a str) -> &'a str {
        let end = token.find('.').map_or(0, |dot| dot + 1);
        let header = self.header.get_or_init(|| token[..end].into());
        token.strip_prefix(&**header).unwrap_or(token)
    }

    /// Whether [`Key::without_header`] made this text of this token.
    pub(super) fn kept_as(&self, token: &str, text: &str) -> bool {
        let (token, text) = (token.as_bytes(), text.as_bytes());
        let Some(start) = token.len().checked_sub(text.len()) else { return false };
        let (head, tail) = token.split_at(start);
        tail == text && (head.is_empty() || self.header.get().is_some_and(|header| head == header.as_bytes()))
    }

    pub(super) fn is_good_at(&self, now: Timestamp) -> bool {
        now.0 < self.good_until.load(Ordering::Acquire)
    }

    pub(super) fn keep_until(&self, until: Timestamp) {
        self.good_until.store(until.0, Ordering::Release);
    }

    pub(super) fn retire(&self) {
        self.good_until.store(i64::MIN, Ordering::Release);
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.algorithm == other.algorithm && self.material == other.material
    }
}

// === impl NamedKey ===

impl NamedKey {
    /// Reads one key of a JWKS (RFC 7517 section 4).
    ///
    /// # Errors
    /// Why the key cannot be used, in words for the operator.
    pub(super) fn read(jwk: &Map<String, Value>) -> Result<Self, &'static str> {
        let key_id = text(jwk, "kid").filter(|id| !id.is_empty()).ok_or("it has no kid")?.to_owned();
        check_purpose(jwk)?;
        let key = match text(jwk, "kty") {
            Some("RSA") => rsa(jwk),
            Some("EC") => elliptic(jwk),
            Some("OKP") => edwards(jwk),
            Some(_) | None => Err("its kty is none of RSA, EC, OKP"),
        }?;
        Ok(Self { key_id, key })
    }
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    jwk.get(name).and_then(Value::as_str)
}

fn check_purpose(jwk: &Map<String, Value>) -> Result<(), &'static str> {
    if jwk.get("use").is_some_and(|purpose| purpose != "sig") {
        return Err("its use is not sig");
    }
    let operations = jwk.get("key_ops").map(|all| all.as_array().cloned().unwrap_or_default());
    if operations.is_some_and(|all| !all.iter().any(|operation| operation == "verify")) {
        return Err("its key_ops lack verify");
    }
    if ["d", "p", "q", "k"].iter().any(|name| jwk.contains_key(*name)) {
        return Err("it publishes its private half");
    }
    Ok(())
}

/// The algorithm of a key is its `alg`; where that is absent, the one accepted for its type.
fn check_algorithm(jwk: &Map<String, Value>, of_type: Algorithm) -> Result<Algorithm, &'static str> {
    match jwk.get("alg") {
        None => Ok(of_type),
        Some(Value::String(name)) if jws::algorithm(name) == Some(of_type) => Ok(of_type),
        Some(_) => Err("its alg is not accepted for its type"),
    }
}

fn octets(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, &'static str> {
    let encoded = text(jwk, name).ok_or("a member of the public key is missing")?;
    URL_SAFE_NO_PAD.decode(encoded).map_err(|_| "a member of the public key is not base64url")
}

fn rsa(jwk: &Map<String, Value>) -> Result<Key, &'static str> {
    let algorithm = check_algorithm(jwk, Algorithm::RS256)?;
    let (modulus, exponent) = (trimmed(octets(jwk, "n")?), trimmed(octets(jwk, "e")?));
    if !RSA_BITS.contains(&bits(&modulus)) {
        return Err("its modulus is not of 2048 to 8192 bits");
    }
    let odd = |number: &[u8]| number.last().is_some_and(|last| last & 1 == 1);
    if !odd(&exponent) || exponent == [1] || exponent.len() > 4 || !odd(&modulus) {
        return Err("its exponent or modulus is not sound");
    }
    if roca::is_weak(&modulus) {
        return Err("its modulus is of the ROCA kind");
    }
    let decoding = DecodingKey::from_rsa_raw_components(&modulus, &exponent);
    Ok(Key::new(algorithm, decoding, [modulus, exponent].concat()))
}

fn elliptic(jwk: &Map<String, Value>) -> Result<Key, &'static str> {
    let algorithm = check_algorithm(jwk, Algorithm::ES256)?;
    if text(jwk, "crv") != Some("P-256") {
        return Err("its crv is not P-256");
    }
    let (x, y) = (octets(jwk, "x")?, octets(jwk, "y")?);
    if x.len() != 32 || y.len() != 32 {
        return Err("its coordinates are not 32 bytes each");
    }
    let point = [&[4], x.as_slice(), y.as_slice()].concat();
    ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).map_err(|_| "its point is not on the curve")?;
    Ok(Key::new(algorithm, DecodingKey::from_ec_der(&point), point))
}

fn edwards(jwk: &Map<String, Value>) -> Result<Key, &'static str> {
    let algorithm = check_algorithm(jwk, Algorithm::EdDSA)?;
    if text(jwk, "crv") != Some("Ed25519") {
        return Err("its crv is not Ed25519");
    }
    let x = octets(jwk, "x")?;
    if x.len() != 32 {
        return Err("its x is not 32 bytes");
    }
    ParsedPublicKey::new(&ED25519, &x).map_err(|_| "its x is not a point")?;
    Ok(Key::new(algorithm, DecodingKey::from_ed_der(&x), x))
}

fn trimmed(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}

fn bits(number: &[u8]) -> usize {
    number.first().map_or(0, |first| number.len() * 8 - usize::try_from(first.leading_zeros()).unwrap_or(0))
}
