//! Signing keys: one for each pool, created with it and kept as long as it exists, so that tokens
//! remain valid across restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::store::PoolStore;

/// The key pair of a pool.
pub(crate) struct SigningKey {
    kid: String,
    pair: RsaKeyPair,
    n: String,
    e: String,
}

/// The signing keys by pool id.
#[derive(Default)]
pub(crate) struct SigningKeys(RwLock<BTreeMap<String, Arc<SigningKey>>>);

// === impl SigningKey ===

impl SigningKey {
    fn from_pair(pair: RsaKeyPair, pool_id: &str) -> Self {
        let public = pair.public_key();
        let (n, e) = (public.modulus(), public.exponent());
        let n = URL_SAFE_NO_PAD.encode(n.big_endian_without_leading_zero());
        let e = URL_SAFE_NO_PAD.encode(e.big_endian_without_leading_zero());
        let kid = random::digest(&[&n, pool_id]);
        Self { kid, pair, n, e }
    }

    /// Returns a JWS in compact serialization (RFC 7515 section 3.1) with the header that Cognito
    /// writes. Signs with the parsed key pair, because `jsonwebtoken` parses and validates the
    /// whole key for every signature.
    pub(crate) fn sign(&self, claims: &Value) -> Result<String, ApiError> {
        let header = json!({"kid": self.kid, "alg": "RS256"}).to_string();
        let mut token = URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut token);
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                token.as_bytes(),
                &mut signature,
            )
            .map_err(|error| ApiError::internal(&error))?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    pub(crate) fn decoding_key(&self) -> Result<DecodingKey, ApiError> {
        DecodingKey::from_rsa_components(&self.n, &self.e)
            .map_err(|error| ApiError::internal(&error))
    }

    fn to_jwk(&self) -> Value {
        json!({"alg": "RS256", "e": self.e, "kid": self.kid, "kty": "RSA", "n": self.n, "use": "sig"})
    }
}

// === impl SigningKeys ===

impl SigningKeys {
    /// Loads the keys of the pools, and creates those that are missing.
    pub(crate) async fn load(store: &PoolStore, pools: &[String]) -> Result<Self, ApiError> {
        let keys = Self::default();
        for pool in pools {
            keys.add_pool(store, pool).await?;
        }
        Ok(keys)
    }

    /// Loads the key of a pool, or creates it.
    pub(crate) async fn add_pool(&self, store: &PoolStore, pool_id: &str) -> Result<(), ApiError> {
        let pair = if let Some(der) = store.signing_key(pool_id).await? {
            let der = STANDARD
                .decode(der)
                .map_err(|error| ApiError::internal(&error))?;
            RsaKeyPair::from_pkcs8(&der).map_err(|error| ApiError::internal(&error))?
        } else {
            let pair = tokio::task::spawn_blocking(new_key_pair)
                .await
                .map_err(|error| ApiError::internal(&error))??;
            let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|error| ApiError::internal(&error))?;
            store
                .add_signing_key(pool_id, &STANDARD.encode(der.as_ref()))
                .await?;
            pair
        };
        let key = Arc::new(SigningKey::from_pair(pair, pool_id));
        self.0.write().insert(pool_id.to_owned(), key);
        Ok(())
    }

    /// Returns the key of a pool.
    pub(crate) fn key(&self, pool_id: &str) -> Result<Arc<SigningKey>, ApiError> {
        let key = self.0.read().get(pool_id).map(Arc::clone);
        key.ok_or_else(|| ApiError::internal("the pool has no signing key"))
    }

    /// Returns the pool and the key of a key id.
    pub(crate) fn find(&self, kid: &str) -> Option<(String, Arc<SigningKey>)> {
        let keys = self.0.read();
        let (pool_id, key) = keys.iter().find(|(_, key)| key.kid == kid)?;
        Some((pool_id.clone(), Arc::clone(key)))
    }

    /// Removes the key of a deleted pool from memory.
    pub(crate) fn remove_pool(&self, pool_id: &str) {
        self.0.write().remove(pool_id);
    }

    /// Returns the keys of one pool, or of all, as a JWK set (RFC 7517 section 5).
    pub(crate) fn to_jwks(&self, pool_id: Option<&str>) -> Value {
        let keys = self.0.read();
        let keys = keys
            .iter()
            .filter(|(pool, _)| pool_id.is_none_or(|id| id == *pool))
            .map(|(_, key)| key.to_jwk())
            .collect::<Vec<_>>();
        json!({"keys": keys})
    }
}

#[cfg(not(test))]
fn new_key_pair() -> Result<RsaKeyPair, ApiError> {
    RsaKeyPair::generate(KeySize::Rsa2048).map_err(|error| ApiError::internal(&error))
}

/// Tests start hundreds of servers: they share three key pairs under distinct key ids.
#[cfg(test)]
fn new_key_pair() -> Result<RsaKeyPair, ApiError> {
    static PAIRS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let make = || {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key pair");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("PKCS #8");
        der.as_ref().to_vec()
    };
    let pairs = PAIRS.get_or_init(|| std::iter::repeat_with(make).take(3).collect());
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % pairs.len();
    RsaKeyPair::from_pkcs8(&pairs[next]).map_err(|error| ApiError::internal(&error))
}
