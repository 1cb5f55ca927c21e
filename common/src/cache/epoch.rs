//! At-most-once guarantees that survive a failover of the store: values are bound to an epoch.

use std::time::Duration;

use super::{Cache, CacheError, CacheStore};

/// A value with the epoch of its server, which was read before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRead {
    /// The value.
    pub value: Option<Vec<u8>>,
    /// The epoch.
    pub epoch: String,
}

/// A change of one key that is applied only if the key has not changed since it was read.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Key to change.
    pub key: &'a str,
    /// Epoch in which the key was read.
    pub epoch: &'a str,
    /// Value that was read.
    pub expected: Option<&'a [u8]>,
    /// New value, which must be different for every call: a retry of a call whose answer was lost
    /// recognizes it.
    pub value: &'a [u8],
    /// Time to live of the new value.
    pub ttl: Duration,
}

// === impl Cache ===

impl Cache {
    /// Returns the epoch of the server that stores `key`: one uninterrupted history of one process
    /// as master. It changes with every restart, failover and failback and never repeats, so that
    /// within one epoch a taken value does not reappear. Over Redis it consists of `run_id` and
    /// `master_replid`.
    ///
    /// # Errors
    /// As [`Cache::set`]; also if the server is a replica, or its ACL forbids INFO.
    pub async fn epoch(&self, key: &str) -> Result<String, CacheError> {
        match &self.0.store {
            CacheStore::Memory(memory) => Ok(memory.epoch().to_owned()),
            CacheStore::Redis(redis) => redis.epoch(&self.key(key)).await,
        }
    }

    /// Takes as [`Cache::take`] does, and returns the epoch in which the value was taken.
    ///
    /// # Errors
    /// As [`Cache::take`].
    pub async fn take_with_epoch(
        &self,
        key: &str,
    ) -> Result<(Option<Vec<u8>>, String), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => Ok((memory.take(&key), memory.epoch().to_owned())),
            CacheStore::Redis(redis) => redis.take_with_epoch(&key).await,
        }
    }

    /// Stores as [`Cache::set_if_absent`] does, if the server is in `epoch`.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn set_if_absent_in(
        &self,
        epoch: &str,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) if memory.epoch() == epoch => {
                memory.set_if_absent(&key, value, ttl)
            }
            CacheStore::Memory(_) => Ok(false),
            CacheStore::Redis(redis) => redis.set_if_absent_in(epoch, &key, value, ttl).await,
        }
    }

    /// Returns the value and the epoch, for a later [`Cache::compare_and_set`].
    ///
    /// # Errors
    /// As [`Cache::epoch`].
    pub async fn get_with_epoch(&self, key: &str) -> Result<EpochRead, CacheError> {
        let epoch = self.epoch(key).await?;
        Ok(EpochRead {
            value: self.get(key).await?,
            epoch,
        })
    }

    /// Applies a change. Returns false if the key has changed since it was read, or if the server
    /// is in another epoch.
    ///
    /// # Errors
    /// As [`Cache::set`]; then the change may have been applied. The call may be repeated.
    pub async fn compare_and_set(&self, change: &Change<'_>) -> Result<bool, CacheError> {
        let key = self.key(change.key);
        let change = Change {
            key: &key,
            ..*change
        };
        match &self.0.store {
            CacheStore::Memory(memory) => memory.compare_and_set(&change),
            CacheStore::Redis(redis) => redis.compare_and_set(&change).await,
        }
    }
}
