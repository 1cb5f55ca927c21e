//! At-most-once guarantees that survive a failover of the store: values are bound to an epoch.

use std::time::Duration;

use super::redis::{millis, script};
use super::{Cache, CacheError, CacheStore};

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
            CacheStore::Redis(redis) => redis.invoke(&script::EPOCH.key(self.key(key))).await,
        }
    }

    /// Deletes the key and returns its value with the epoch in which it was deleted. Of concurrent
    /// callers, one gets the value.
    ///
    /// # Errors
    /// As [`Cache::epoch`]; the value may have been deleted.
    pub async fn take_with_epoch(
        &self,
        key: &str,
    ) -> Result<(Option<Vec<u8>>, String), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => Ok((memory.take(&key), memory.epoch().to_owned())),
            CacheStore::Redis(redis) => redis.invoke(&script::TAKE.key(key)).await,
        }
    }

    /// Stores `value` for `ttl` if the key does not exist and the server is in `epoch`, and returns
    /// whether it did. Of concurrent callers, one succeeds.
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
            CacheStore::Redis(redis) => {
                let mut script = script::SET_IF_ABSENT.key(key);
                redis
                    .invoke(script.arg(value).arg(millis(ttl)).arg(epoch))
                    .await
            }
        }
    }
}
