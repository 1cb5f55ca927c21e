//! Password hashes: PBKDF2-HMAC-SHA256 (RFC 8018) with few iterations, because the pool is for
//! development. They are computed on blocking threads.

use std::num::NonZeroU32;

use aws_lc_rs::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_core::Secret;
use tokio::task::spawn_blocking;

use crate::pool::error::{ApiError, ApiResult};

const ITERATIONS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Returns a random salt and the hash of a password with it, in base64.
pub(crate) async fn hash_password(password: &Secret) -> ApiResult<String> {
    let mut stored = [0; SALT_BYTES + HASH_BYTES];
    getrandom::fill(&mut stored[..SALT_BYTES]).map_err(|error| ApiError::internal(&error))?;
    let password = password.clone();
    let hashing = spawn_blocking(move || {
        let (salt, hash) = stored.split_at_mut(SALT_BYTES);
        let password = password.expose().as_bytes();
        pbkdf2::derive(PBKDF2_HMAC_SHA256, ITERATIONS, salt, password, hash);
        STANDARD.encode(stored)
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
    let is_match = verifying
        .await
        .map_err(|error| ApiError::internal(&error))?;
    Ok(is_match && is_known)
}
