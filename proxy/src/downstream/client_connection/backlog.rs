use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether bytes are waiting for a client to take them, for those who no longer have its connection
/// in hand.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBacklog(Arc<AtomicBool>);

impl WriteBacklog {
    pub(super) fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
