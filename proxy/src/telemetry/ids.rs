//! Request ids and trace ids: unique, sortable by time, and cheap. They are not secret.

use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use postern_core::clock::Timestamp;
use uuid::Uuid;

/// A generator of ids, with a random seed per process.
#[derive(Debug, Default)]
pub(crate) struct IdGenerator {
    seed: RandomState,
    count: AtomicU64,
}

impl IdGenerator {
    pub(crate) fn next_id(&self, now: Timestamp) -> Uuid {
        let millis = u64::try_from(now.0).unwrap_or(0);
        let (high, low) = (
            self.random_u64().to_be_bytes(),
            self.random_u64().to_be_bytes(),
        );
        let random = [
            high[0], high[1], high[2], high[3], high[4], high[5], high[6], high[7], low[0], low[1],
        ];
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }

    /// Returns a pseudo-random number other than 0.
    pub(crate) fn random_u64(&self) -> u64 {
        self.seed
            .hash_one(self.count.fetch_add(1, Ordering::Relaxed))
            .max(1)
    }
}
