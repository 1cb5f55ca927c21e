//! Temporary caches for tests, each with separate keys. Not for production.

mod server;

use uuid::Uuid;

pub use self::server::RedisServer;
#[cfg(test)]
pub(super) use self::server::free_port;
use super::Cache;
use postern_core::clock::Clock;
use postern_core::testing::required;

/// A cache with a namespace of its own.
#[derive(Clone, Debug)]
pub struct TestCache {
    /// URL, for processes that open the cache themselves.
    pub url: String,
    /// Open, empty cache.
    pub cache: Cache,
}

/// Creates a namespace on the server that `POSTERN_TEST_REDIS` names.
pub async fn redis() -> TestCache {
    let server = required("POSTERN_TEST_REDIS");
    // The default deadline assumes a server that does not share the machine with tests.
    let url = format!(
        "{server}?namespace={}&deadline=5000ms",
        Uuid::new_v4().simple()
    );
    let cache = Cache::open(&url, &Clock::system()).expect("POSTERN_TEST_REDIS is a URL");
    TestCache { url, cache }
}

/// Creates a cache in process memory.
#[must_use]
pub fn memory(clock: Clock) -> TestCache {
    TestCache {
        url: "memory:".to_owned(),
        cache: Cache::memory(clock),
    }
}

/// Creates one cache of each kind, for tests that apply to both.
pub async fn both() -> [TestCache; 2] {
    [memory(Clock::system()), redis().await]
}
