//! Values in the shared cache that only the holder of a token can read.
//!
//! The cache never contains the token: the entry's key is the token's SHA-256 digest, and the value
//! is sealed with a key derived from the token. Reading the cache therefore reveals neither.
//! [`TokenVault::take`] returns a value to at most one caller: a value is sealed to the epoch of
//! the cache in which it was stored, so that a copy restored from a snapshot, a replica or a
//! fail-back does not open.

use std::time::Duration;

use postern_common::cache::{Cache, CacheError};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{KeyRing, SealingKey, random, sha256_hex};

/// The purpose of a value. A token of one purpose opens nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VaultPurpose {
    /// The identity that a temporary token is exchanged for.
    TemporaryToken,
    /// The token set that a refresh token was exchanged for, kept for repeated requests.
    RefreshReplay,
}

/// Sealed values in the shared cache, stored under random single-use tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenVault {
    cache: Cache,
}

// === impl VaultPurpose ===

impl VaultPurpose {
    fn name(self) -> &'static str {
        match self {
            Self::TemporaryToken => "temporary",
            Self::RefreshReplay => "refresh-replay",
        }
    }

    /// Returns the cache key of a token's entry.
    pub(crate) fn cache_key(self, token: &str) -> String {
        format!("postern:auth:{}:{}", self.name(), sha256_hex(token))
    }

    /// Seals a value for a token that exists already. The value can be read any number of times and
    /// is not bound to an epoch.
    pub(crate) fn seal(self, token: &str, plain: &[u8]) -> String {
        self.key_ring(token).seal(&[self.name()], plain)
    }

    /// Opens a value that [`VaultPurpose::seal`] sealed for this token.
    pub(crate) fn open(self, token: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        open(self, token, &[self.name()], sealed)
    }

    fn key_ring(self, token: &str) -> KeyRing {
        let digest = Sha256::new()
            .chain_update("postern vault v1\0")
            .chain_update(token)
            .finalize();
        KeyRing::new(SealingKey::new(&digest.into()), Vec::new())
    }
}

// === impl TokenVault ===

impl TokenVault {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache }
    }

    /// Stores a value under a new token and returns the token, which is kept nowhere else.
    pub(crate) async fn issue(
        &self,
        purpose: VaultPurpose,
        plain: &[u8],
        ttl: Duration,
    ) -> Result<String, CacheError> {
        let token = random::token();
        let key = purpose.cache_key(&token);
        let epoch = self.cache.epoch(&key).await?;
        let sealed = purpose
            .key_ring(&token)
            .seal(&[purpose.name(), &epoch], plain);
        self.cache.set(&key, sealed.as_bytes(), ttl).await?;
        Ok(token)
    }

    /// Removes and returns the value of a token. Of concurrent callers at most one gets it.
    ///
    /// Values issued before a restart or a fail-over of the cache are lost even if the cache still
    /// contains them, because they may have been taken already.
    pub(crate) async fn take(
        &self,
        purpose: VaultPurpose,
        token: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, CacheError> {
        let key = purpose.cache_key(token);
        let (sealed, epoch) = self.cache.take_with_epoch(&key).await?;
        Ok(sealed.and_then(|sealed| open(purpose, token, &[purpose.name(), &epoch], &sealed)))
    }
}

fn open(
    purpose: VaultPurpose,
    token: &str,
    context: &[&str],
    sealed: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    purpose
        .key_ring(token)
        .open(context, std::str::from_utf8(sealed).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    async fn vault() -> TokenVault {
        TokenVault::new(Cache::open("memory:").await.expect("memory"))
    }

    async fn take(vault: &TokenVault, purpose: VaultPurpose, token: &str) -> Option<Vec<u8>> {
        let taken = vault.take(purpose, token).await.expect("cache answers");
        taken.map(|plain| plain.to_vec())
    }

    #[tokio::test]
    async fn value_is_taken_once_and_only_for_its_purpose() {
        let vault = vault().await;
        let purpose = VaultPurpose::TemporaryToken;
        let token = vault.issue(purpose, b"ada", TTL).await.expect("stored");
        assert_eq!(
            take(&vault, VaultPurpose::RefreshReplay, &token).await,
            None
        );
        assert_eq!(
            take(&vault, purpose, &token).await.as_deref(),
            Some(&b"ada"[..])
        );
        assert_eq!(take(&vault, purpose, &token).await, None);
    }

    #[tokio::test]
    async fn cache_contains_neither_token_nor_value() {
        let vault = vault().await;
        let purpose = VaultPurpose::TemporaryToken;
        let token = vault.issue(purpose, b"ada@example.com", TTL).await;
        let token = token.expect("stored");
        let key = purpose.cache_key(&token);
        assert!(!key.contains(&token));
        let stored = vault.cache.get(&key).await.expect("cache answers");
        let stored = stored.expect("an entry");
        assert!(!String::from_utf8_lossy(&stored).contains("ada"));
    }

    #[tokio::test]
    async fn one_of_sixteen_concurrent_callers_takes_the_value() {
        let vault = vault().await;
        let purpose = VaultPurpose::TemporaryToken;
        let token = vault.issue(purpose, b"x", TTL).await.expect("stored");
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let (vault, token) = (vault.clone(), token.clone());
            callers.spawn(async move { take(&vault, purpose, &token).await.is_some() });
        }
        let outcomes = callers.join_all().await;
        assert_eq!(outcomes.into_iter().filter(|won| *won).count(), 1);
    }
}
