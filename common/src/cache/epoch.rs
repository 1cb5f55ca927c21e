//! At-most-once guarantees that survive a failover of the store: values are bound to an epoch.

use std::time::Duration;

use super::{Cache, CacheError, CacheStore};

/// Values of several keys, read in the epoch of the first key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRead<const N: usize> {
    /// Values in the order of the keys.
    pub values: [Option<Vec<u8>>; N],
    /// Epoch of the first key's server, read before the values.
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
    /// Share of the memory cache that the value uses, so that one principal cannot fill the cache.
    pub owner: Option<MemoryShare<'a>>,
}

/// A part of the memory cache that the values of one principal may use. A value that replaces a
/// larger one of another share remains in that share if its own has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShare<'a> {
    /// Name of the share, such as the principal. Each name is accounted separately.
    pub name: &'a str,
    /// Number by which the bytes of the cache are divided.
    pub divisor: usize,
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
    pub async fn get_with_epoch(&self, key: &str) -> Result<EpochRead<1>, CacheError> {
        let epoch = self.epoch(key).await?;
        Ok(EpochRead {
            values: [self.get(key).await?],
            epoch,
        })
    }

    /// Applies a change. Returns false if the key has changed since it was read, or if the server
    /// is in another epoch.
    ///
    /// # Errors
    /// As [`Cache::set`]; then the change may have been applied. The call may be repeated.
    pub async fn compare_and_set(&self, change: &Change<'_>) -> Result<bool, CacheError> {
        self.commit(change, &[], None).await
    }

    pub(super) async fn set_if_absent_and_get<const N: usize>(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
        keys: [&str; N],
    ) -> Result<(bool, EpochRead<N>), CacheError> {
        let (key, keys) = (self.key(key), keys.map(|key| self.key(key)));
        match &self.0.store {
            CacheStore::Memory(memory) => {
                let is_stored = memory.set_if_absent(&key, value, ttl)?;
                let values = keys.map(|key| memory.get(&key));
                Ok((
                    is_stored,
                    EpochRead {
                        values,
                        epoch: memory.epoch().to_owned(),
                    },
                ))
            }
            CacheStore::Redis(redis) => redis.set_if_absent_and_get(&key, value, ttl, &keys).await,
        }
    }

    /// Applies the change, stores all of `dependent` and deletes the lock if it still has its
    /// token. Does nothing if the change does not apply.
    pub(super) async fn commit(
        &self,
        change: &Change<'_>,
        dependent: &[(&str, &[u8], Duration)],
        lock: Option<(&str, &[u8])>,
    ) -> Result<bool, CacheError> {
        let key = self.key(change.key);
        let (lock_key, token) = lock.map(|(lock, token)| (self.key(lock), token)).unzip();
        let lock = lock_key.as_deref().zip(token);
        let change = Change {
            key: &key,
            ..*change
        };
        let dependent: Vec<_> = dependent
            .iter()
            .map(|(key, value, ttl)| (self.key(key), *value, *ttl))
            .collect();
        match &self.0.store {
            CacheStore::Memory(memory) => memory.commit(&change, &dependent, lock),
            CacheStore::Redis(redis) => redis.commit(&change, &dependent, lock).await,
        }
    }
}
