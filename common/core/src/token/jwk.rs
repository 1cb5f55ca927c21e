//! Public keys of a JWKS (RFC 7517).

use std::sync::atomic::{AtomicI64, Ordering};

use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::jws::{self, CompactJws};
use super::{TokenError, roca};
use crate::clock::Timestamp;

/// Accepted RSA key sizes. Smaller keys are rejected (RFC 7518 section 3.3); larger ones make
/// verification too expensive.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A public key with which `jsonwebtoken` verifies signatures.
pub(super) struct VerificationKey {
    /// The algorithm that tokens must have.
    pub(super) algorithm: Algorithm,
    decoding_key: DecodingKey,
    /// Accepts this algorithm only. Times and audience are left to `trust`.
    validation: Validation,
    /// Public key octets, to detect whether a refreshed key is the same.
    material: Vec<u8>,
    /// Unix milliseconds until which the key may verify. Extended by each refresh that contains the
    /// key, and reset by one that does not.
    good_until: AtomicI64,
    pub(super) public_jwk: Map<String, Value>,
    /// Unix milliseconds of the fetch that first contained the key.
    first_seen: AtomicI64,
}

/// Reason for skipping a key without `kid` where tokens must name their key.
pub(super) const NO_KEY_ID: &str = "it has no kid";

impl VerificationKey {
    fn new(algorithm: Algorithm, decoding_key: DecodingKey, material: Vec<u8>) -> Self {
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        Self {
            algorithm,
            decoding_key,
            validation,
            material,
            good_until: AtomicI64::new(i64::MIN),
            public_jwk: Map::new(),
            first_seen: AtomicI64::new(0),
        }
    }

    /// Verifies the signature. The token's algorithm must be the key's.
    pub(super) fn check(&self, jws: &CompactJws<'_>) -> Result<(), TokenError> {
        if jws.algorithm != self.algorithm {
            return Err(TokenError::AlgorithmOfKey);
        }
        match jsonwebtoken::decode::<IgnoredAny>(jws.token, &self.decoding_key, &self.validation) {
            Ok(_verified) => Ok(()),
            // Of the payload, which is read after the signature: the header was read strictly.
            Err(error) if matches!(error.kind(), ErrorKind::Json(_)) => Err(TokenError::NotJson),
            Err(_) => Err(TokenError::Signature),
        }
    }

    pub(super) fn is_valid_at(&self, now: Timestamp) -> bool {
        now.0 < self.good_until.load(Ordering::Acquire)
    }

    pub(super) fn extend_until(&self, until: Timestamp) {
        self.good_until.store(until.0, Ordering::Release);
    }

    /// Stores the time of the fetch that first contained the key.
    pub(super) fn set_first_seen(&self, at: Timestamp) {
        self.first_seen.store(at.0, Ordering::Relaxed);
    }

    /// Returns the time of the fetch that first contained the key.
    pub(super) fn first_seen(&self) -> Timestamp {
        Timestamp(self.first_seen.load(Ordering::Relaxed))
    }

    pub(super) fn retire(&self) {
        self.good_until.store(i64::MIN, Ordering::Release);
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.algorithm == other.algorithm && self.material == other.material
    }

    /// Parses one key of a JWKS (RFC 7517 section 4), with its `kid` if it has one.
    pub(super) fn read(jwk: &Map<String, Value>) -> Result<(Option<String>, Self), &'static str> {
        let key_id = jwk.get("kid").map(|id| {
            let id = id.as_str().filter(|id| !id.is_empty());
            id.map(str::to_owned).ok_or(NO_KEY_ID)
        });
        let key_id = key_id.transpose()?;
        check_purpose(jwk)?;
        let mut key = match text(jwk, "kty") {
            Some("RSA") => rsa(jwk),
            Some("EC") => elliptic(jwk),
            Some("OKP") => edwards(jwk),
            Some(_) | None => Err("its kty is none of RSA, EC, OKP"),
        }?;
        key.public_jwk = public_members(jwk);
        Ok((key_id, key))
    }
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    jwk.get(name).and_then(Value::as_str)
}

/// Returns the members that RFC 7517 section 4 and RFC 7518 section 6 define for public keys.
fn public_members(jwk: &Map<String, Value>) -> Map<String, Value> {
    const PUBLIC: [&str; 9] = ["kty", "kid", "alg", "use", "crv", "x", "y", "n", "e"];
    let members = jwk
        .iter()
        .filter(|(name, _)| PUBLIC.contains(&name.as_str()));
    let members = members.map(|(name, value)| (name.clone(), value.clone()));
    members.collect()
}

fn check_purpose(jwk: &Map<String, Value>) -> Result<(), &'static str> {
    if jwk.get("use").is_some_and(|purpose| purpose != "sig") {
        return Err("its use is not sig");
    }
    let can_verify = |all: &Value| {
        let mut all = all.as_array().into_iter().flatten();
        all.any(|operation| operation == "verify")
    };
    if !jwk.get("key_ops").is_none_or(can_verify) {
        return Err("its key_ops lack verify");
    }
    if ["d", "p", "q", "k"]
        .iter()
        .any(|name| jwk.contains_key(*name))
    {
        return Err("it publishes its private half");
    }
    Ok(())
}

/// Returns the algorithm: the key's `alg`, or the accepted one of its type if there is none.
fn check_algorithm(
    jwk: &Map<String, Value>,
    of_type: Algorithm,
) -> Result<Algorithm, &'static str> {
    match jwk.get("alg") {
        None => Ok(of_type),
        Some(Value::String(name)) if jws::algorithm(name) == Some(of_type) => Ok(of_type),
        Some(_) => Err("its alg is not accepted for its type"),
    }
}

fn octets(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, &'static str> {
    let encoded = text(jwk, name).ok_or("a member of the public key is missing")?;
    URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| "a member of the public key is not base64url")
}

fn rsa(jwk: &Map<String, Value>) -> Result<VerificationKey, &'static str> {
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
    let components = PublicKeyComponents {
        n: &modulus,
        e: &exponent,
    };
    components
        .to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256)
        .map_err(|_| "its modulus and exponent are no key")?;
    Ok(VerificationKey::new(
        algorithm,
        DecodingKey::from_rsa_raw_components(&modulus, &exponent),
        [modulus, exponent].concat(),
    ))
}

fn elliptic(jwk: &Map<String, Value>) -> Result<VerificationKey, &'static str> {
    let algorithm = check_algorithm(jwk, Algorithm::ES256)?;
    if text(jwk, "crv") != Some("P-256") {
        return Err("its crv is not P-256");
    }
    let (x, y) = (octets(jwk, "x")?, octets(jwk, "y")?);
    if x.len() != 32 || y.len() != 32 {
        return Err("its coordinates are not 32 bytes each");
    }
    let point = [&[4], x.as_slice(), y.as_slice()].concat();
    ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point)
        .map_err(|_| "its point is not on the curve")?;
    let key = DecodingKey::from_ec_der(&point);
    Ok(VerificationKey::new(algorithm, key, point))
}

fn edwards(jwk: &Map<String, Value>) -> Result<VerificationKey, &'static str> {
    let algorithm = check_algorithm(jwk, Algorithm::EdDSA)?;
    if text(jwk, "crv") != Some("Ed25519") {
        return Err("its crv is not Ed25519");
    }
    let x = octets(jwk, "x")?;
    if x.len() != 32 {
        return Err("its x is not 32 bytes");
    }
    ParsedPublicKey::new(&ED25519, &x).map_err(|_| "its x is not a point")?;
    let key = DecodingKey::from_ed_der(&x);
    Ok(VerificationKey::new(algorithm, key, x))
}

fn trimmed(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}

fn bits(number: &[u8]) -> usize {
    number.first().map_or(0, |first| {
        number.len() * 8 - usize::try_from(first.leading_zeros()).unwrap_or(0)
    })
}
