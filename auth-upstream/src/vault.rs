//! Values in the shared cache that only the holder of a token can read.
//!
//! The cache never sees the token: the entry's key is the token's SHA-256, and the value is sealed
//! with a key derived from the token. Whoever reads the cache learns neither; whoever takes a value
//! with [`Vault::take`] is the only one who does: a value is sealed to the epoch of the cache that
//! it was stored in, so that one that a snapshot, a replica or a fail-back brings back opens no
//! more.

use std::time::Duration;

use postern_common::cache::{Cache, CacheError};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::random;
use crate::seal::{Key, KeyRing, hex};

/// What a value is for. A token of one drawer opens nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drawer {
    /// The identity behind a temporary token.
    Temporary,
    /// The token set that a refresh token was exchanged for, kept for repeats.
    RefreshReplay,
}

/// Sealed values in the shared cache.
#[derive(Clone, Debug)]
pub(crate) struct Vault {
    cache: Cache,
}

// === impl Drawer ===

impl Drawer {
    fn name(self) -> &'static str {
        match self {
            Self::Temporary => "temporary",
            Self::RefreshReplay => "refresh-replay",
        }
    }

    /// The key of a token's entry.
    pub(crate) fn entry(self, token: &str) -> String {
        format!(
            "postern:auth:{}:{}",
            self.name(),
            hex(&Sha256::digest(token))
        )
    }

    /// A value for the entry of a token that the caller chose, to be read any number of times.
    pub(crate) fn seal(self, token: &str, plain: &[u8]) -> String {
        self.ring(token).seal(&[self.name()], plain)
    }

    /// What [`Drawer::seal`] sealed for this token.
    pub(crate) fn open(self, token: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        open(self, token, &[self.name()], sealed)
    }

    fn ring(self, token: &str) -> KeyRing {
        let digest = Sha256::new()
            .chain_update("postern vault v1\0")
            .chain_update(token)
            .finalize();
        KeyRing::new(Key::new(&digest.into()), Vec::new())
    }
}

// === impl Vault ===

impl Vault {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache }
    }

    /// Stores a value to be taken once, under a new token, which is returned and kept nowhere.
    pub(crate) async fn issue(
        &self,
        drawer: Drawer,
        plain: &[u8],
        ttl: Duration,
    ) -> Result<String, CacheError> {
        let token = random::token();
        let entry = drawer.entry(&token);
        let epoch = self.cache.epoch(&entry).await?;
        let sealed = drawer.ring(&token).seal(&[drawer.name(), &epoch], plain);
        self.cache.set(&entry, sealed.as_bytes(), ttl).await?;
        Ok(token)
    }

    /// Takes out what was issued: of all callers at once, at most one gets it. What was issued
    /// before a restart or a fail-over of the cache is lost, whatever the cache still has: it may
    /// have been taken.
    pub(crate) async fn take(
        &self,
        drawer: Drawer,
        token: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, CacheError> {
        let entry = drawer.entry(token);
        let (sealed, epoch) = self.cache.take_with_epoch(&entry).await?;
        Ok(sealed.and_then(|sealed| open(drawer, token, &[drawer.name(), &epoch], &sealed)))
    }

    /// Whether the cache has an entry for the token, whoever may open it.
    #[cfg(test)]
    pub(crate) async fn holds(&self, token: &str) -> bool {
        self.cache
            .get(&Drawer::Temporary.entry(token))
            .await
            .expect("cache")
            .is_some()
    }
}

fn open(
    drawer: Drawer,
    token: &str,
    context: &[&str],
    sealed: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    drawer
        .ring(token)
        .open(context, std::str::from_utf8(sealed).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn vault() -> Vault {
        Vault::new(Cache::open("memory:").await.expect("memory"))
    }

    #[tokio::test]
    async fn a_value_is_taken_once_and_only_from_its_drawer() {
        let vault = vault().await;
        let ttl = Duration::from_secs(60);
        let token = vault
            .issue(Drawer::Temporary, b"ada", ttl)
            .await
            .expect("stored");
        assert!(
            vault
                .take(Drawer::RefreshReplay, &token)
                .await
                .expect("cache")
                .is_none()
        );
        let taken = vault.take(Drawer::Temporary, &token).await.expect("cache");
        assert_eq!(taken.as_deref().map(Vec::as_slice), Some(&b"ada"[..]));
        assert!(
            vault
                .take(Drawer::Temporary, &token)
                .await
                .expect("cache")
                .is_none()
        );
    }

    #[tokio::test]
    async fn the_cache_holds_neither_token_nor_value() {
        let vault = vault().await;
        let token = vault
            .issue(
                Drawer::Temporary,
                b"ada@example.com",
                Duration::from_secs(60),
            )
            .await
            .expect("ok");
        assert!(!Drawer::Temporary.entry(&token).contains(&token));
        let stored = vault
            .cache
            .get(&Drawer::Temporary.entry(&token))
            .await
            .expect("cache")
            .expect("there");
        assert!(!String::from_utf8_lossy(&stored).contains("ada"));
    }

    #[tokio::test]
    async fn of_sixteen_callers_one_takes_it() {
        let vault = vault().await;
        let token = vault
            .issue(Drawer::Temporary, b"x", Duration::from_secs(60))
            .await
            .expect("stored");
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let (vault, token) = (vault.clone(), token.clone());
            callers.spawn(async move {
                vault
                    .take(Drawer::Temporary, &token)
                    .await
                    .expect("cache")
                    .is_some()
            });
        }
        let won = callers
            .join_all()
            .await
            .into_iter()
            .filter(|won| *won)
            .count();
        assert_eq!(won, 1);
    }
}
