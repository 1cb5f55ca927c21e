//! Values in the shared cache that only the holder of a single-use token can read.
//!
//! The cache never contains the token: the entry's key is the token's SHA-256 digest, and the value
//! is sealed with a key derived from the token. Reading the cache therefore reveals neither.
//! [`TokenVault::take`] returns a value to at most one caller: a value is sealed to the epoch of
//! the cache in which it was stored, so that a copy restored from a snapshot, a replica or a
//! fail-back does not open.

use std::time::Duration;

use postern_store::cache::{Cache, CacheError};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{KeyRing, SealingKey, random, sha256_hex};

/// The first part of the sealing context of values. The second is the epoch.
const VALUE_CONTEXT: &str = "temporary";

/// Sealed values in the shared cache, stored under random single-use tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenVault {
    cache: Cache,
}

// === impl TokenVault ===

impl TokenVault {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache }
    }

    /// Returns the cache key of a token's entry.
    pub(crate) fn cache_key(token: &str) -> String {
        format!("postern:auth:temporary:{}", sha256_hex(token))
    }

    /// Stores a value under a new token and returns the token, which is kept nowhere else.
    pub(crate) async fn issue(&self, plain: &[u8], ttl: Duration) -> Result<String, CacheError> {
        let token = random::token();
        let key = Self::cache_key(&token);
        let epoch = self.cache.epoch(&key).await?;
        let sealed = key_ring(&token).seal(&[VALUE_CONTEXT, &epoch], plain);
        self.cache.set(&key, sealed.as_bytes(), ttl).await?;
        Ok(token)
    }

    /// Removes and returns the value of a token. Of concurrent callers at most one gets it.
    ///
    /// Values issued before a restart or a fail-over of the cache are lost even if the cache still
    /// contains them, because they may have been taken already.
    pub(crate) async fn take(&self, token: &str) -> Result<Option<Zeroizing<Vec<u8>>>, CacheError> {
        let (sealed, epoch) = self.cache.take_with_epoch(&Self::cache_key(token)).await?;
        let sealed = sealed.and_then(|sealed| String::from_utf8(sealed).ok());
        Ok(sealed.and_then(|sealed| key_ring(token).open(&[VALUE_CONTEXT, &epoch], &sealed)))
    }
}

/// Returns the key that is derived from a token.
fn key_ring(token: &str) -> KeyRing {
    let digest = Sha256::new()
        .chain_update("postern vault v1\0")
        .chain_update(token)
        .finalize();
    KeyRing::new(SealingKey::new(&digest.into()), Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    async fn vault() -> TokenVault {
        TokenVault::new(Cache::open("memory:").await.expect("memory"))
    }

    #[tokio::test]
    async fn cache_contains_neither_token_nor_value() {
        let vault = vault().await;
        let token = vault.issue(b"ada@example.com", TTL).await.expect("stored");
        let key = TokenVault::cache_key(&token);
        assert!(!key.contains(&token));
        let stored = vault.cache.get(&key).await.expect("cache answers");
        let stored = stored.expect("an entry");
        assert!(!String::from_utf8_lossy(&stored).contains("ada"));
    }
}
