//! Password hashes, signing keys of pools, and digests.

use std::num::NonZeroU32;

use aws_lc_rs::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use postern_core::Secret;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::UserPool;
use crate::random;
use crate::signing_key::{KeyError, SigningKey};

/// Few iterations, because the pool is for development.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Returns a random salt and the hash of a password with it (PBKDF2-HMAC-SHA256, RFC 8018), in base64.
pub(crate) async fn hash_password(password: &Secret) -> ApiResult<String> {
    let password = password.clone();
    let hashing = spawn_blocking(move || {
        let salt: [u8; SALT_BYTES] = random::bytes();
        let mut hash = [0; HASH_BYTES];
        let password = password.expose().as_bytes();
        pbkdf2::derive(PBKDF2_HMAC_SHA256, ITERATIONS, &salt, password, &mut hash);
        STANDARD.encode([&salt[..], &hash].concat())
    });
    hashing.await.map_err(|error| ApiError::internal(&error))
}

/// Returns whether a password is that of a stored hash. Without one, takes the same time and returns
/// `false`.
pub(crate) async fn is_password(password: &Secret, stored: Option<&str>) -> ApiResult<bool> {
    let known = stored.and_then(|text| STANDARD.decode(text).ok());
    let known = known.filter(|bytes| bytes.len() == SALT_BYTES + HASH_BYTES);
    let is_known = known.is_some();
    let bytes = known.unwrap_or_else(|| vec![0; SALT_BYTES + HASH_BYTES]);
    let password = password.clone();
    let verifying = spawn_blocking(move || {
        let (salt, hash) = bytes.split_at(SALT_BYTES);
        let password = password.expose().as_bytes();
        pbkdf2::verify(PBKDF2_HMAC_SHA256, ITERATIONS, salt, password, hash).is_ok()
    });
    let is_match = verifying.await;
    Ok(is_match.map_err(|error| ApiError::internal(&error))? && is_known)
}

/// Generates the signing key of a pool, with which its tokens remain valid across restarts: PKCS #8
/// in base64.
pub(crate) async fn new_signing_key() -> ApiResult<String> {
    let generated = spawn_blocking(generate).await;
    let key = generated.map_err(|error| ApiError::internal(&error))?;
    Ok(STANDARD.encode(key.map_err(|error| ApiError::internal(&error))?))
}

#[cfg(not(test))]
fn generate() -> Result<Vec<u8>, KeyError> {
    SigningKey::generate()
}

/// Tests start many servers: they share a key under distinct key ids.
#[cfg(test)]
fn generate() -> Result<Vec<u8>, KeyError> {
    static KEY: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let make = || SigningKey::generate().expect("a key pair");
    Ok(KEY.get_or_init(make).clone())
}

/// Returns the signing key of a pool, which is parsed once.
pub(crate) fn signing_key(pool: &UserPool) -> ApiResult<&SigningKey> {
    if let Some(key) = pool.parsed_key.get() {
        return Ok(key);
    }
    let der = STANDARD.decode(&pool.signing_key);
    let der = der.map_err(|error| ApiError::internal(&error))?;
    let key = SigningKey::from_pkcs8(&der, &pool.id);
    let key = key.map_err(|error| ApiError::internal(&error))?;
    Ok(pool.parsed_key.get_or_init(|| key))
}

/// Returns the SHA-256 digest of a text in base64url: the stored form of tokens.
pub(crate) fn digest(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(text))
}
