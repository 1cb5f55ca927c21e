//! What may be forgotten: single-use values, counters, locks, copies. Redis or this process's
//! memory, by URL.
//!
//! | URL | store |
//! |---|---|
//! | `memory:` | this process alone |
//! | `redis://user:password@host:6379/0`, `rediss://…` | one server, plain or TLS; Redis 6.2 or later |
//! | `redis-cluster://user:password@host:6379,host:6379`, `rediss-cluster://…` | a Redis Cluster |
//! | `redis-sentinel://user:password@sentinel:26379,sentinel:26379/master-name/0`, `rediss-sentinel://…` | the master that the sentinels name |
//!
//! With TLS, `?ca=/path/ca.pem` names the authority where it is not one of the public ones. Every
//! key begins with `postern:`, or with `postern:NAME:` if the URL has `?namespace=NAME`. A call
//! takes no longer than its deadline (250 ms, or the URL's `?deadline=500ms`); after five failures
//! in a row calls fail at once for 500 ms and then one tries again, so that a cache that hangs
//! costs little.
//!
//! A call that fails may have had its effect: a [`Cache::take`] whose answer is lost has taken.
//! That is the safe side for a single-use value, and the reason why no call is repeated here.
//!
//! A server that restarts may have forgotten what it noted, and one that loads a snapshot, a
//! replica that takes over, or a former master that is failed back to, brings back what was taken.
//! Whoever promises "once" binds a value to
//! [`Cache::epoch`].

mod address;
mod breaker;
mod epoch;
mod lock;
mod memory;
mod redis;
pub mod testing;

use std::sync::Arc;
use std::time::Duration;

pub use self::epoch::{Change, Found};
pub use self::lock::Guard;
use self::memory::Memory;
use self::redis::Redis;
use crate::clock::Clock;
use crate::exit::Exit;
use crate::{Code, Problem};

/// The cache. Clones share it.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    /// `postern:`, or `postern:NAME:`.
    prefix: String,
    label: String,
}

#[derive(Debug)]
enum Store {
    Memory(Box<Memory>),
    Redis(Box<Redis>),
}

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call to Redis may take, waiting for a connection included. Default 250 ms: long
    /// for a store on the same network, short for a person who waits.
    pub deadline: Duration,
    /// By what `memory:` forgets; Redis has a clock of its own.
    pub clock: Clock,
    /// Entries that `memory:` holds at most. Default 200,000.
    pub memory_entries: usize,
    /// Bytes that `memory:` holds at most, keys and bookkeeping included. Default 64 MiB.
    pub memory_bytes: usize,
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Away, too slow, refusing, or full.
    #[error("the cache is not available")]
    Unavailable,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(250),
            clock: Clock::system(),
            memory_entries: 200_000,
            memory_bytes: 64 << 20,
        }
    }
}

impl From<CacheError> for Problem {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Unavailable => Self::new(Code::Unavailable),
        }
    }
}

// === impl Cache ===

impl Cache {
    /// Opens the cache with the defaults. Redis is not spoken to yet: a process starts, and stays
    /// up, without its cache, and answers 503 where it needs it. [`Cache::ping`] tells readiness.
    ///
    /// # Errors
    /// Status 64: the URL names no cache that we know.
    #[expect(
        clippy::unused_async,
        reason = "part of the start sequence, beside the database"
    )]
    pub async fn open(url: &str) -> Result<Self, Exit> {
        Self::open_with(url, &Options::default())
    }

    /// Opens the cache.
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn open_with(url: &str, options: &Options) -> Result<Self, Exit> {
        let address =
            address::parse(url).map_err(|reason| Exit::usage(format!("cache: {reason}")))?;
        let store = match address.target {
            address::Target::Memory => Store::Memory(Box::new(Memory::new(options))),
            address::Target::Redis(server) => Store::Redis(Box::new(Redis::new(
                *server,
                address.deadline.unwrap_or(options.deadline),
            ))),
        };
        Ok(Self(Arc::new(Inner {
            store,
            prefix: address.prefix,
            label: address.label,
        })))
    }

    /// A cache in this process, forgetting by `clock`.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        let store = Store::Memory(Box::new(Memory::new(&Options {
            clock,
            ..Options::default()
        })));
        Self(Arc::new(Inner {
            store,
            prefix: "postern:".to_owned(),
            label: "memory:".to_owned(),
        }))
    }

    /// Keeps `value` for `ttl`, replacing what was there.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`], as every call.
    pub async fn set(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => memory.set(&key, value, ttl),
            Store::Redis(redis) => redis.set(&key, value, ttl).await,
        }
    }

    /// Keeps `value` for `ttl` unless something is there; true if it was kept. Of callers that
    /// race, one wins.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => memory.set_if_absent(&key, value, ttl),
            Store::Redis(redis) => redis.set_if_absent(&key, value, ttl).await,
        }
    }

    /// What is kept.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => Ok(memory.get(&key)),
            Store::Redis(redis) => redis.get(&key).await,
        }
    }

    /// What was kept, which is gone from now on (GETDEL). Of callers that race, one gets it.
    ///
    /// # Errors
    /// As [`Cache::set`]; the value may be gone.
    pub async fn take(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => Ok(memory.take(&key)),
            Store::Redis(redis) => redis.take(&key).await,
        }
    }

    /// Forgets; true if something was there.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn delete(&self, key: &str) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => Ok(memory.take(&key).is_some()),
            Store::Redis(redis) => redis.delete(&key).await,
        }
    }

    /// Counts one more and returns the count. The first one starts the window: `ttl` later the
    /// count is forgotten, however many came in between.
    ///
    /// # Errors
    /// As [`Cache::set`]; also if what is kept there is no count.
    pub async fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => memory.increment(&key, ttl),
            Store::Redis(redis) => redis.increment(&key, ttl).await,
        }
    }

    /// Counts one less, within the window that the first one began; a count that is forgotten stays
    /// so.
    ///
    /// # Errors
    /// As [`Cache::increment`].
    pub async fn decrement(&self, key: &str) -> Result<(), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => memory.decrement(&key),
            Store::Redis(redis) => redis.decrement(&key).await,
        }
    }

    /// Takes a lock that may be held for `ttl` at most; `None` if another holds it. Over Redis it
    /// is a lease of 2.5 s that is renewed while the guard lives, so that a lock of a holder that
    /// was killed, or that a fail-over brings back, is free within 3 s. It saves work and is no
    /// proof: a holder that is suspended may go on for a moment when another has the lock, so what
    /// must happen once is decided in the database or by [`Cache::compare_and_set`].
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn lock(&self, key: &str, ttl: Duration) -> Result<Option<Guard>, CacheError> {
        lock::take(self, key, ttl).await
    }

    /// Takes a lock as [`Cache::lock`] does, and tells what is kept under some keys, in one round
    /// trip (two, over a cluster): read after the lock was taken, where it was.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn lock_and_get<const N: usize>(
        &self,
        key: &str,
        ttl: Duration,
        wanted: [&str; N],
    ) -> Result<(Option<Guard>, Found<N>), CacheError> {
        lock::take_and_get(self, key, ttl, wanted).await
    }

    /// Takes a lock as [`Cache::lock`] does, and waits for it while another holds it; `None` when
    /// it was not to be had in time. Those who wait have no order.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn wait_for_lock(
        &self,
        key: &str,
        ttl: Duration,
        patience: Duration,
    ) -> Result<Option<Guard>, CacheError> {
        lock::wait(self, key, ttl, patience).await
    }

    /// One round trip, for readiness checks.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub async fn ping(&self) -> Result<(), CacheError> {
        match &self.0.store {
            Store::Memory(_) => Ok(()),
            Store::Redis(redis) => redis.ping().await,
        }
    }

    /// The cache's address for logs and messages, without its password.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Deletes the key if it still holds `value`.
    async fn delete_if_equal(&self, key: &str, value: &[u8]) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            Store::Memory(memory) => Ok(memory.delete_if_equal(&key, value)),
            Store::Redis(redis) => redis.delete_if_equal(&key, value).await,
        }
    }

    /// Gives the key another time to live if it still holds `value`.
    async fn extend_if_equal(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        match &self.0.store {
            // A lock in memory is kept for as long as it may be held.
            Store::Memory(memory) => Ok(memory
                .get(&self.key(key))
                .is_some_and(|found| found == value)),
            Store::Redis(redis) => redis.extend_if_equal(&self.key(key), value, ttl).await,
        }
    }

    fn key(&self, key: &str) -> String {
        format!(
            "{}{}",
            self.0.prefix,
            key.strip_prefix("postern:").unwrap_or(key)
        )
    }
}

#[cfg(test)]
mod tests;
