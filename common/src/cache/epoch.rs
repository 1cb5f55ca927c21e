//! What must happen at most once, whatever becomes of the store.

use std::time::Duration;

use super::{Cache, CacheError, Store};

/// What was read of a few keys, all in one epoch or in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<const N: usize> {
    /// In the order of the keys.
    pub values: [Option<Vec<u8>>; N],
    /// The epoch of the first key, read before its value.
    pub epoch: String,
}

/// A change to one key that is made only if nobody has changed it since it was read.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Which one.
    pub key: &'a str,
    /// The epoch in which it was read.
    pub epoch: &'a str,
    /// What was there.
    pub expected: Option<&'a [u8]>,
    /// What is to be there, different at every call: a repeat of a call whose answer was lost finds
    /// it there.
    pub value: &'a [u8],
    /// For how long.
    pub ttl: Duration,
    /// Whose share of the cache in memory it is taken from, with what is kept beside it: one
    /// principal cannot fill it.
    pub owner: Option<&'a str>,
}

// === impl Cache ===

impl Cache {
    /// Names the history that the store of `key` writes: one process, for as long as it is the
    /// master. It is another one after every restart, fail-over and fail-back, and none comes
    /// twice, so that within one epoch nothing that was taken comes back. Over Redis: `run_id` and
    /// `master_replid`.
    ///
    /// # Errors
    /// As [`Cache::set`]; also where the store is a replica, or its ACL forbids INFO.
    pub async fn epoch(&self, key: &str) -> Result<String, CacheError> {
        match &self.0.store {
            Store::Memory(memory) => Ok(memory.epoch().to_owned()),
            Store::Redis(redis) => redis.epoch(&self.key(key)).await,
        }
    }

    /// Takes as [`Cache::take`] does, and tells the epoch in which it was taken.
    ///
    /// # Errors
    /// As [`Cache::take`].
    pub async fn take_with_epoch(
        &self,
        key: &str,
    ) -> Result<(Option<Vec<u8>>, String), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => Ok((memory.take(&key), memory.epoch().to_owned())),
            Store::Redis(redis) => redis.take_with_epoch(&key).await,
        }
    }

    /// Keeps as [`Cache::set_if_absent`] does, and only in this epoch.
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
            Store::Memory(memory) if memory.epoch() == epoch => {
                memory.set_if_absent(&key, value, ttl)
            }
            Store::Memory(_) => Ok(false),
            Store::Redis(redis) => redis.set_if_absent_in(epoch, &key, value, ttl).await,
        }
    }

    /// What is kept, and the epoch, to be changed with [`Cache::compare_and_set`].
    ///
    /// # Errors
    /// As [`Cache::epoch`].
    pub async fn get_with_epoch(&self, key: &str) -> Result<Found<1>, CacheError> {
        let epoch = self.epoch(key).await?;
        Ok(Found {
            values: [self.get(key).await?],
            epoch,
        })
    }

    /// Makes a change; false if somebody has changed the key since it was read, or if the store is
    /// in another epoch.
    ///
    /// # Errors
    /// As [`Cache::set`]: then it is not known whether it was done. It may be repeated.
    pub async fn compare_and_set(&self, change: &Change<'_>) -> Result<bool, CacheError> {
        self.commit(change, &[], None).await
    }

    pub(super) async fn set_if_absent_and_get<const N: usize>(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
        wanted: [&str; N],
    ) -> Result<(bool, Found<N>), CacheError> {
        let (key, wanted) = (self.key(key), wanted.map(|key| self.key(key)));
        match &self.0.store {
            Store::Memory(memory) => {
                let kept = memory.set_if_absent(&key, value, ttl)?;
                let values = wanted.map(|key| memory.get(&key));
                Ok((
                    kept,
                    Found {
                        values,
                        epoch: memory.epoch().to_owned(),
                    },
                ))
            }
            Store::Redis(redis) => redis.set_if_absent_and_get(&key, value, ttl, &wanted).await,
        }
    }

    /// Makes the change, keeps all of `kept` and deletes the lock if it still has this value; or
    /// does none of it.
    pub(super) async fn commit(
        &self,
        change: &Change<'_>,
        kept: &[(&str, &[u8], Duration)],
        lock: Option<(&str, &[u8])>,
    ) -> Result<bool, CacheError> {
        let key = self.key(change.key);
        let (lock_key, token) = lock.map(|(lock, token)| (self.key(lock), token)).unzip();
        let lock = lock_key.as_deref().zip(token);
        let change = Change {
            key: &key,
            ..*change
        };
        let kept: Vec<_> = kept
            .iter()
            .map(|(key, value, ttl)| (self.key(key), *value, *ttl))
            .collect();
        match &self.0.store {
            Store::Memory(memory) => memory.commit(&change, &kept, lock),
            Store::Redis(redis) => redis.commit(&change, &kept, lock).await,
        }
    }
}
