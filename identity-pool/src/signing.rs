//! Signing keys: one signs, the next one is published already, the old ones stay until their tokens
//! have died.
//!
//! A key's turn begins at its `signs_from` and ends where the next one's begins. The keys are kept
//! in the store, so that a token that was signed before a restart verifies after it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use postern_common::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fault::Fault;
use crate::random;
use crate::store::{KeyRow, Store};

/// The longest that Cognito lets an access or ID token live.
pub(crate) const LONGEST_TOKEN: Duration = Duration::from_secs(86_400);

/// How long a call waits for the keys of a first start.
const FIRST_KEYS: Duration = Duration::from_secs(10);

/// A key that signs, has signed, or will.
pub(crate) struct SigningKey {
    kid: String,
    pair: RsaKeyPair,
    n: String,
    e: String,
    signs_from: Timestamp,
}

/// A pool's keys in the order of their turns.
type Ring = Arc<Vec<Arc<SigningKey>>>;

/// The keys of every pool.
pub(crate) struct Keys {
    rings: RwLock<HashMap<String, Ring>>,
    /// How long a key signs.
    period: Duration,
    /// Whether every pool has its keys. A first start makes them while the rest of the process
    /// starts.
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

    fn from_row(row: &KeyRow) -> Result<Self, Fault> {
        let der = STANDARD
            .decode(&row.der)
            .map_err(|error| Fault::internal(&error))?;
        let pair = RsaKeyPair::from_pkcs8(&der).map_err(|error| Fault::internal(&error))?;
        Ok(Self::from_pair(
            pair,
            &row.pool_id,
            Timestamp(row.signs_from),
        ))
    }

    /// A JWS in compact form (RFC 7515 section 3.1) with the header that Cognito writes. The parsed
    /// key pair is used directly: `jsonwebtoken` parses and checks the whole key again for every
    /// signature.
    pub(crate) fn sign(&self, claims: &Value) -> Result<String, Fault> {
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
            .map_err(|error| Fault::internal(&error))?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    pub(crate) fn decoding_key(&self) -> Result<DecodingKey, Fault> {
        DecodingKey::from_rsa_components(&self.n, &self.e).map_err(|error| Fault::internal(&error))
    }

    fn to_jwk(&self) -> Value {
        json!({"alg": "RS256", "e": self.e, "kid": self.kid, "kty": "RSA", "n": self.n, "use": "sig"})
    }
}

// === impl Keys ===

impl Keys {
    pub(crate) async fn load(store: &Store, period: Duration) -> Result<Self, Fault> {
        let keys = Self {
            rings: RwLock::default(),
            period,
            ready: watch::Sender::new(false),
        };
        keys.reload(store).await?;
        Ok(keys)
    }

    async fn reload(&self, store: &Store) -> Result<(), Fault> {
        let mut rings: HashMap<String, Vec<Arc<SigningKey>>> = HashMap::new();
        for row in store.keys().await? {
            let known = self.known(&row.pool_id, &row.kid);
            let key = match known {
                Some(key) => key,
                None => Arc::new(SigningKey::from_row(&row)?),
            };
            rings.entry(row.pool_id).or_default().push(key);
        }
        let rings = rings
            .into_iter()
            .map(|(pool, keys)| (pool, Arc::new(keys)))
            .collect();
        *self.rings.write().unwrap_or_else(PoisonError::into_inner) = rings;
        Ok(())
    }

    fn known(&self, pool_id: &str, kid: &str) -> Option<Arc<SigningKey>> {
        self.ring(pool_id)
            .iter()
            .find(|key| key.kid == kid)
            .map(Arc::clone)
    }

    fn ring(&self, pool_id: &str) -> Ring {
        let rings = self.rings.read().unwrap_or_else(PoisonError::into_inner);
        rings.get(pool_id).map(Arc::clone).unwrap_or_default()
    }

    /// Gives every pool a key that signs and one whose turn comes next, and takes out those whose
    /// last token has died. Called at start and on a schedule.
    pub(crate) async fn turn(
        &self,
        store: &Store,
        pools: &[String],
        now: Timestamp,
    ) -> Result<(), Fault> {
        let wanted: Vec<(String, Timestamp)> = pools
            .iter()
            .flat_map(|pool| {
                self.wanted(pool, now)
                    .into_iter()
                    .map(|at| (pool.clone(), at))
            })
            .collect();
        for row in generate(wanted).await? {
            store.add_key(&row).await?;
            tracing::info!(target: "audit", pool_id = row.pool_id, kid = row.kid, "signing key made");
        }
        let superseded_before =
            Timestamp(now.0 - i64::try_from(LONGEST_TOKEN.as_millis()).unwrap_or(i64::MAX));
        for pool in pools {
            store.drop_dead_keys(pool, superseded_before).await?;
        }
        self.reload(store).await?;
        self.ready.send_replace(true);
        Ok(())
    }

    /// Returns when the first start has made the keys.
    ///
    /// # Errors
    /// If that takes longer than ten seconds; the log tells why.
    pub(crate) async fn wait(&self) -> Result<(), Fault> {
        if *self.ready.borrow() {
            return Ok(());
        }
        let mut ready = self.ready.subscribe();
        match tokio::time::timeout(FIRST_KEYS, ready.wait_for(|ready| *ready)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Fault::internal("there are no signing keys yet")),
        }
    }

    /// The turns that have no key yet.
    fn wanted(&self, pool_id: &str, now: Timestamp) -> Vec<Timestamp> {
        let ring = self.ring(pool_id);
        let next = now.plus(self.period);
        match ring.last() {
            None => vec![now, next],
            Some(last) if last.signs_from <= now => vec![next],
            Some(_) => Vec::new(),
        }
    }

    /// The key whose turn it is.
    pub(crate) fn current(&self, pool_id: &str, now: Timestamp) -> Result<Arc<SigningKey>, Fault> {
        let ring = self.ring(pool_id);
        let current = ring.iter().rev().find(|key| key.signs_from <= now);
        current
            .map(Arc::clone)
            .ok_or_else(|| Fault::internal("the pool has no signing key"))
    }

    /// A published key of the pool.
    pub(crate) fn find(&self, pool_id: &str, kid: &str) -> Option<Arc<SigningKey>> {
        self.known(pool_id, kid)
    }

    /// Forgets the keys of a pool that was deleted.
    pub(crate) fn forget(&self, pool_id: &str) {
        self.rings
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(pool_id);
    }

    /// The published keys as a JWK set (RFC 7517 section 5).
    pub(crate) fn to_jwks<'a>(&self, pools: impl IntoIterator<Item = &'a String>) -> Value {
        let keys: Vec<Value> = pools
            .into_iter()
            .flat_map(|pool| {
                self.ring(pool)
                    .iter()
                    .map(|key| key.to_jwk())
                    .collect::<Vec<_>>()
            })
            .collect();
        json!({"keys": keys})
    }
}

/// Makes RSA keys of 2048 bits, side by side.
async fn generate(turns: Vec<(String, Timestamp)>) -> Result<Vec<KeyRow>, Fault> {
    let tasks: Vec<_> = turns
        .into_iter()
        .map(|(pool_id, signs_from)| {
            tokio::task::spawn_blocking(move || generate_one(pool_id, signs_from))
        })
        .collect();
    let mut rows = Vec::with_capacity(tasks.len());
    for task in tasks {
        rows.push(task.await.map_err(|error| Fault::internal(&error))??);
    }
    Ok(rows)
}

fn generate_one(pool_id: String, signs_from: Timestamp) -> Result<KeyRow, Fault> {
    let pair = new_pair()?;
    let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|error| Fault::internal(&error))?;
    let der = STANDARD.encode(der.as_ref());
    let key = SigningKey::from_pair(pair, &pool_id, signs_from);
    Ok(KeyRow {
        kid: key.kid,
        pool_id,
        der,
        signs_from: signs_from.0,
    })
}

#[cfg(not(test))]
fn new_pair() -> Result<RsaKeyPair, Fault> {
    RsaKeyPair::generate(KeySize::Rsa2048).map_err(|error| Fault::internal(&error))
}

/// Hundreds of servers start in a test run; they share a few key pairs under key ids of their own.
#[cfg(test)]
fn new_pair() -> Result<RsaKeyPair, Fault> {
    static PAIRS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let make = || {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key pair");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("PKCS #8");
        der.as_ref().to_vec()
    };
    let pairs = PAIRS.get_or_init(|| std::iter::repeat_with(make).take(3).collect());
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % pairs.len();
    RsaKeyPair::from_pkcs8(&pairs[next]).map_err(|error| Fault::internal(&error))
}
