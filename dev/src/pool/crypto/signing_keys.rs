//! Signing keys and their rotation: per pool, one key signs, the next one is already published, and
//! previous ones remain published until their last token has expired.
//!
//! A key signs from its `signs_from` until that of its successor. Keys are persisted, so that
//! tokens remain valid across restarts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use parking_lot::RwLock;
use postern_common::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::store::{PoolStore, SigningKeyRow};

/// Maximum lifetime of access and ID tokens (Cognito's limit).
pub(crate) const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(86_400);

/// Time for which a call waits for the keys of a first start.
const FIRST_KEYS_TIMEOUT: Duration = Duration::from_secs(10);

/// A key pair of the past, present, or next signing period.
pub(crate) struct SigningKey {
    kid: String,
    pair: RsaKeyPair,
    n: String,
    e: String,
    signs_from: Timestamp,
}

/// A pool's keys, ordered by `signs_from`.
type PoolKeys = Arc<Vec<Arc<SigningKey>>>;

/// The signing keys of every pool.
pub(crate) struct SigningKeys {
    keys_by_pool: RwLock<HashMap<String, PoolKeys>>,
    /// Length of a signing period.
    period: Duration,
    /// Whether every pool has keys. A first start creates them in the background.
    ready: watch::Sender<bool>,
}

// === impl SigningKey ===

impl SigningKey {
    fn from_pair(pair: RsaKeyPair, pool_id: &str, signs_from: Timestamp) -> Self {
        let public = pair.public_key();
        let (n, e) = (public.modulus(), public.exponent());
        let n = URL_SAFE_NO_PAD.encode(n.big_endian_without_leading_zero());
        let e = URL_SAFE_NO_PAD.encode(e.big_endian_without_leading_zero());
        let kid = random::digest(&[&n, pool_id, &signs_from.0.to_string()]);
        Self {
            kid,
            pair,
            n,
            e,
            signs_from,
        }
    }

    fn from_row(row: &SigningKeyRow) -> Result<Self, ApiError> {
        let der = STANDARD
            .decode(&row.der)
            .map_err(|error| ApiError::internal(&error))?;
        let pair = RsaKeyPair::from_pkcs8(&der).map_err(|error| ApiError::internal(&error))?;
        Ok(Self::from_pair(
            pair,
            &row.pool_id,
            Timestamp(row.signs_from),
        ))
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
    pub(crate) async fn load(store: &PoolStore, period: Duration) -> Result<Self, ApiError> {
        let keys = Self {
            keys_by_pool: RwLock::default(),
            period,
            ready: watch::Sender::new(false),
        };
        keys.reload(store).await?;
        Ok(keys)
    }

    async fn reload(&self, store: &PoolStore) -> Result<(), ApiError> {
        let mut keys_by_pool: HashMap<String, Vec<Arc<SigningKey>>> = HashMap::new();
        for row in store.keys().await? {
            let existing = self.find(&row.pool_id, &row.kid);
            let key = match existing {
                Some(key) => key,
                None => Arc::new(SigningKey::from_row(&row)?),
            };
            keys_by_pool.entry(row.pool_id).or_default().push(key);
        }
        let keys_by_pool = keys_by_pool
            .into_iter()
            .map(|(pool, keys)| (pool, Arc::new(keys)))
            .collect();
        *self.keys_by_pool.write() = keys_by_pool;
        Ok(())
    }

    fn pool_keys(&self, pool_id: &str) -> PoolKeys {
        let keys_by_pool = self.keys_by_pool.read();
        keys_by_pool
            .get(pool_id)
            .map(Arc::clone)
            .unwrap_or_default()
    }

    /// Ensures that every pool has a current and a next key, and deletes those whose last token has
    /// expired. Runs at start and periodically.
    pub(crate) async fn rotate(
        &self,
        store: &PoolStore,
        pools: &[String],
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let missing_periods: Vec<(String, Timestamp)> = pools
            .iter()
            .flat_map(|pool| {
                self.missing_periods(pool, now)
                    .into_iter()
                    .map(|at| (pool.clone(), at))
            })
            .collect();
        for row in generate_keys(missing_periods).await? {
            store.add_key(&row).await?;
            tracing::info!(target: "audit", pool_id = row.pool_id, kid = row.kid, "signing key created");
        }
        let superseded_before =
            Timestamp(now.0 - i64::try_from(MAX_TOKEN_LIFETIME.as_millis()).unwrap_or(i64::MAX));
        for pool in pools {
            store.delete_expired_keys(pool, superseded_before).await?;
        }
        self.reload(store).await?;
        self.ready.send_replace(true);
        Ok(())
    }

    /// Waits until the keys of a first start exist.
    ///
    /// # Errors
    /// Fails if the keys are not ready within ten seconds; the log has the cause.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), ApiError> {
        if *self.ready.borrow() {
            return Ok(());
        }
        let mut ready = self.ready.subscribe();
        match tokio::time::timeout(FIRST_KEYS_TIMEOUT, ready.wait_for(|ready| *ready)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ApiError::internal("signing keys are not ready")),
        }
    }

    /// Returns the starts of the signing periods that have no key yet.
    fn missing_periods(&self, pool_id: &str, now: Timestamp) -> Vec<Timestamp> {
        let pool_keys = self.pool_keys(pool_id);
        let next = now.plus(self.period);
        match pool_keys.last() {
            None => vec![now, next],
            Some(last) if last.signs_from <= now => vec![next],
            Some(_) => Vec::new(),
        }
    }

    /// Returns the key that signs now.
    pub(crate) fn current(
        &self,
        pool_id: &str,
        now: Timestamp,
    ) -> Result<Arc<SigningKey>, ApiError> {
        let pool_keys = self.pool_keys(pool_id);
        let current = pool_keys.iter().rev().find(|key| key.signs_from <= now);
        current
            .map(Arc::clone)
            .ok_or_else(|| ApiError::internal("the pool has no signing key"))
    }

    /// Returns a published key of the pool.
    pub(crate) fn find(&self, pool_id: &str, kid: &str) -> Option<Arc<SigningKey>> {
        self.pool_keys(pool_id)
            .iter()
            .find(|key| key.kid == kid)
            .map(Arc::clone)
    }

    /// Removes the keys of a deleted pool from memory.
    pub(crate) fn remove_pool(&self, pool_id: &str) {
        self.keys_by_pool.write().remove(pool_id);
    }

    /// Returns the published keys as a JWK set (RFC 7517 section 5).
    pub(crate) fn to_jwks<'a>(&self, pools: impl IntoIterator<Item = &'a String>) -> Value {
        let keys: Vec<Value> = pools
            .into_iter()
            .flat_map(|pool| {
                self.pool_keys(pool)
                    .iter()
                    .map(|key| key.to_jwk())
                    .collect::<Vec<_>>()
            })
            .collect();
        json!({"keys": keys})
    }
}

/// Generates 2048-bit RSA keys, in parallel.
async fn generate_keys(turns: Vec<(String, Timestamp)>) -> Result<Vec<SigningKeyRow>, ApiError> {
    let tasks: Vec<_> = turns
        .into_iter()
        .map(|(pool_id, signs_from)| {
            tokio::task::spawn_blocking(move || generate_key(pool_id, signs_from))
        })
        .collect();
    let mut rows = Vec::with_capacity(tasks.len());
    for task in tasks {
        rows.push(task.await.map_err(|error| ApiError::internal(&error))??);
    }
    Ok(rows)
}

fn generate_key(pool_id: String, signs_from: Timestamp) -> Result<SigningKeyRow, ApiError> {
    let pair = new_key_pair()?;
    let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|error| ApiError::internal(&error))?;
    let der = STANDARD.encode(der.as_ref());
    let key = SigningKey::from_pair(pair, &pool_id, signs_from);
    Ok(SigningKeyRow {
        kid: key.kid,
        pool_id,
        der,
        signs_from: signs_from.0,
    })
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
