//! Signing keys: one for each pool, created with it, so that tokens remain valid across restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::UserPool;
use crate::signing_key::{KeyError, SigningKey};

/// The signing keys by pool id.
#[derive(Default)]
pub(crate) struct SigningKeys(RwLock<BTreeMap<String, Arc<SigningKey>>>);

// === impl SigningKeys ===

impl SigningKeys {
    /// Adds the key of a pool.
    pub(crate) fn add_pool(&self, pool: &UserPool) -> ApiResult {
        let der = STANDARD
            .decode(&pool.signing_key)
            .map_err(|error| ApiError::internal(&error))?;
        let key = SigningKey::from_pkcs8(&der, &pool.id);
        let key = key.map_err(|error| ApiError::internal(&error))?;
        self.0.write().insert(pool.id.clone(), Arc::new(key));
        Ok(())
    }

    /// Returns the key of a pool.
    pub(crate) fn key(&self, pool_id: &str) -> ApiResult<Arc<SigningKey>> {
        let key = self.0.read().get(pool_id).map(Arc::clone);
        key.ok_or_else(|| ApiError::internal("the pool has no signing key"))
    }

    /// Returns the pool that signed a token, and the claims.
    pub(crate) fn verify(&self, token: &str) -> Option<(String, Value)> {
        let keys = self.0.read();
        keys.iter()
            .find_map(|(pool_id, key)| Some((pool_id.clone(), key.verify(token)?)))
    }

    /// Returns the keys of one pool, or of all, as a JWK set (RFC 7517 section 5).
    pub(crate) fn to_jwks(&self, pool_id: Option<&str>) -> Value {
        let keys = self.0.read();
        let keys = keys
            .iter()
            .filter(|(pool, _)| pool_id.is_none_or(|id| id == *pool))
            .map(|(_, key)| key.jwk())
            .collect::<Vec<_>>();
        json!({"keys": keys})
    }
}

/// Generates a signing key: PKCS #8 in base64.
pub(crate) async fn new_signing_key() -> ApiResult<String> {
    let generated = tokio::task::spawn_blocking(generate).await;
    let key = generated.map_err(|error| ApiError::internal(&error))?;
    Ok(STANDARD.encode(key.map_err(|error| ApiError::internal(&error))?))
}

#[cfg(not(test))]
fn generate() -> Result<Vec<u8>, KeyError> {
    SigningKey::generate()
}

/// Tests start hundreds of servers: they share a key under distinct key ids.
#[cfg(test)]
fn generate() -> Result<Vec<u8>, KeyError> {
    static KEY: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let make = || SigningKey::generate().expect("a key pair");
    Ok(KEY.get_or_init(make).clone())
}
