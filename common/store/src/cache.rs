//! The volatile store: single-use values, counters, locks and cached copies. Redis or process
//! memory, selected by URL.
//!
//! | URL | store |
//! |---|---|
//! | `memory:` | this process only |
//! | `redis://user:password@host:6379/0`, `rediss://…` | one server, plain or TLS; Redis 6.2 or later |
//! | `redis-cluster://user:password@host:6379,host:6379`, `rediss-cluster://…` | a Redis Cluster |
//! | `redis-sentinel://user:password@sentinel:26379,sentinel:26379/master-name/0`, `rediss-sentinel://…` | the master that the sentinels report |
//!
//! With TLS, `?ca=/path/ca.pem` names a private certificate authority. Every key is prefixed with
//! `postern:`, or with `postern:NAME:` if the URL has `?namespace=NAME`.
//!
//! A call takes at most its deadline (250 ms, or `?deadline=500ms`). After five consecutive
//! failures a circuit breaker fails calls immediately for 500 ms, then admits one call as a probe,
//! so that an unresponsive cache costs little.
//!
//! A failed call may have taken effect: a [`Cache::take_with_epoch`] whose answer was lost has removed the
//! value. This is the safe side for single-use values, and the reason why no call is retried here.
//!
//! Redis may lose acknowledged writes: a server that loads an old snapshot, a replica that is
//! promoted, or a former master after a failback can contain values that were already taken. Code
//! that guarantees "at most once" binds a value to [`Cache::epoch`].
//!
//! Input: keys, values and a time to live. Output: values, or an error if the store is unavailable.

mod attempts;
mod epoch;
mod lock;
mod memory;
mod pace;
mod redis;
pub mod testing;
mod url;

use std::sync::Arc;
use std::time::Duration;

pub use self::attempts::{AttemptOutcome, AttemptPolicy, AttemptReservation};
use self::memory::MemoryCache;
use self::redis::{RedisCache, millis, script, set};
use postern_core::check::CheckResult;
use postern_core::clock::Clock;
use postern_core::exit::Exit;
use postern_core::{Code, Problem};

/// A cache. Clones share the same store.
#[derive(Clone)]
pub struct Cache(Arc<CacheInner>);

struct CacheInner {
    store: CacheStore,
    /// `postern:` or `postern:NAME:`.
    prefix: String,
    label: String,
}

/// Time for which the key of a probe is kept.
const PROBE_TTL: Duration = Duration::from_secs(1);

enum CacheStore {
    Memory(Box<MemoryCache>),
    Redis(Box<RedisCache>),
}

/// The reason why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The cache is unreachable, too slow, full, or rejected the command.
    #[error("the cache is not available")]
    Unavailable,
}

impl From<CacheError> for Problem {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Unavailable => Self::new(Code::Unavailable),
        }
    }
}

impl Cache {
    /// Opens the cache. Does not connect to Redis: a process starts and runs without its cache, and
    /// answers 503 for requests that need it. Use [`Cache::ping`] for readiness. `clock` expires the
    /// entries of `memory:`; Redis uses its own.
    pub fn open(url: &str, clock: &Clock) -> Result<Self, Exit> {
        let url = url::parse(url).map_err(|reason| Exit::usage(format!("cache: {reason}")))?;
        let store = match url.server {
            None => CacheStore::Memory(Box::new(MemoryCache::new(clock.clone()))),
            Some(server) => CacheStore::Redis(Box::new(RedisCache::new(
                url.label.clone(),
                server,
                url.deadline,
            ))),
        };
        Ok(Self(Arc::new(CacheInner {
            store,
            prefix: url.prefix,
            label: url.label,
        })))
    }

    /// Creates a cache in process memory that expires entries by `clock`.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        Self(Arc::new(CacheInner {
            store: CacheStore::Memory(Box::new(MemoryCache::new(clock))),
            prefix: "postern:".to_owned(),
            label: "memory:".to_owned(),
        }))
    }

    /// Stores `value` for `ttl`, replacing an existing value.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`], as every call.
    pub async fn set(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => memory.set(&key, value, ttl),
            CacheStore::Redis(redis) => redis.command(&set(&key, value, ttl)).await,
        }
    }

    /// Stores `value` for `ttl` if the key does not exist, and returns whether it did. Of
    /// concurrent callers, one succeeds.
    async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => memory.set_if_absent(&key, value, ttl),
            CacheStore::Redis(redis) => {
                let stored = redis.command(set(&key, value, ttl).arg("NX")).await;
                stored.map(|stored: Option<String>| stored.is_some())
            }
        }
    }

    /// Returns the value of the key.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => Ok(memory.get(&key)),
            CacheStore::Redis(redis) => redis.command(::redis::cmd("GET").arg(key)).await,
        }
    }

    /// Deletes the key and returns whether it existed.
    pub async fn delete(&self, key: &str) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => Ok(memory.take(&key).is_some()),
            CacheStore::Redis(redis) => redis.command(::redis::cmd("DEL").arg(key)).await,
        }
    }

    /// Increments a counter and returns its value. The first increment starts a fixed window: the
    /// counter expires `ttl` later, regardless of further increments.
    ///
    /// # Errors
    /// As [`Cache::set`]; also if the value is not a counter.
    pub async fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => memory.increment(&key, ttl),
            CacheStore::Redis(redis) => {
                redis
                    .invoke(script::INCREMENT.key(key).arg(millis(ttl)))
                    .await
            }
        }
    }

    #[cfg(test)]
    pub(crate) async fn lock(
        &self,
        key: &str,
        ttl: Duration,
    ) -> Result<Option<lock::LockGuard>, CacheError> {
        lock::acquire(self, key, ttl).await
    }

    /// Runs `work` under a lock, which is waited for up to `max_wait` and held for at most `ttl`.
    /// Returns `None` if the lock is not free in time; waiters are not served in order. The lock is
    /// released afterwards, also if the returned future is dropped.
    ///
    /// Over Redis the lock is a lease of 2.5 s that is renewed while the work runs, so that a lock
    /// of a killed holder, or one that a failover restored, is free within 3 s. The lock is an
    /// optimization and not a guarantee: a suspended holder may continue briefly after another has
    /// acquired it. Use the database for what must happen at most once.
    ///
    /// # Errors
    /// As [`Cache::set`]. Also if the lock can no longer be confirmed, because another may acquire
    /// it; then `work` is dropped at its next await point.
    pub async fn with_lock<T>(
        &self,
        key: &str,
        ttl: Duration,
        max_wait: Duration,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, CacheError> {
        match lock::wait(self, key, ttl, max_wait).await? {
            Some(guard) => guard.run(work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Writes a key, for readiness checks: a server that is full or read-only answers PING.
    pub async fn ping(&self) -> Result<(), String> {
        let CacheStore::Redis(redis) = &self.0.store else {
            return Ok(());
        };
        let written = self.set("probe", b"", PROBE_TTL).await;
        written.map_err(|_| redis.last_error())
    }

    /// Checks that the cache accepts writes, for the command `check`.
    pub async fn check(&self) -> CheckResult {
        let outcome = self.ping().await;
        let outcome = outcome.map(|()| "accepts writes".to_owned());
        let reason = |reason: String| format!("{} accepts no writes: {reason}", self.label());
        CheckResult::new("cache", outcome.map_err(reason))
    }

    /// Returns the cache's URL without its password, for logs and error messages.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Deletes the key if its value is `value`.
    async fn delete_if_equal(&self, key: &str, value: &[u8]) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => Ok(memory.delete_if_equal(&key, value)),
            CacheStore::Redis(redis) => {
                redis
                    .invoke(script::DELETE_IF_EQUAL.key(key).arg(value))
                    .await
            }
        }
    }

    /// Sets a new time to live if the key's value is `value`.
    async fn extend_if_equal(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let key = self.key(key);
        match &self.0.store {
            // A lock in memory already has its full time to live.
            CacheStore::Memory(memory) => Ok(memory.get(&key).as_deref() == Some(value)),
            CacheStore::Redis(redis) => {
                let mut script = script::EXTEND_IF_EQUAL.key(key);
                redis.invoke(script.arg(value).arg(millis(ttl))).await
            }
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

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.store {
            CacheStore::Memory(memory) => write!(f, "memory, entries: {}", memory.entries()),
            CacheStore::Redis(_) => f.write_str(self.label()),
        }
    }
}

#[cfg(test)]
mod tests;
