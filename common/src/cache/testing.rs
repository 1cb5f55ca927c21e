//! Caches for tests: each has keys of its own. Not for production.

mod server;

use uuid::Uuid;

pub use self::server::RedisServer;
#[cfg(test)]
pub(super) use self::server::free_port;
use super::Cache;
use crate::clock::Clock;
use crate::database::testing::required;

/// A cache that no other test sees.
#[derive(Clone, Debug)]
pub struct TestCache {
    /// For processes that open it themselves.
    pub url: String,
    /// Open and empty.
    pub cache: Cache,
}

/// A namespace on the server that `POSTERN_TEST_REDIS` names.
///
/// # Panics
/// If the variable is not set or is not a URL: a test cannot go on.
pub async fn redis() -> TestCache {
    let server = required("POSTERN_TEST_REDIS");
    // The default deadline is for a server that has the machine to itself.
    let url = format!(
        "{server}?namespace={}&deadline=5000ms",
        Uuid::new_v4().simple()
    );
    let cache = Cache::open(&url)
        .await
        .expect("POSTERN_TEST_REDIS is a URL");
    TestCache { url, cache }
}

/// One in this process.
#[must_use]
pub fn memory(clock: Clock) -> TestCache {
    TestCache {
        url: "memory:".to_owned(),
        cache: Cache::memory(clock),
    }
}

/// One of each: what a cache promises, it promises over both.
///
/// # Panics
/// As [`redis()`].
pub async fn both() -> [TestCache; 2] {
    [memory(Clock::system()), redis().await]
}
