//! A flag for written data that the client has not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shared flag: whether written data waits for the client to read it.
#[derive(Clone, Debug, Default)]
pub struct WriteBacklog(Arc<AtomicBool>);

impl WriteBacklog {
    pub(super) fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::Relaxed);
    }

    /// Returns whether data waits.
    pub fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
