use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Code, Problem};

/// Bytes of request bodies that may be in memory at once, over all connections of a server: memory is bounded by this,
/// whatever many clients send together.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Semaphore>);

/// What one body has taken of the room. Whoever keeps what came in the body keeps this with it; the room is free again
/// when the last clone is gone.
#[derive(Clone, Debug, Default)]
pub struct Held {
    _taken: Option<Arc<OwnedSemaphorePermit>>,
}

// === impl Room ===

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Whether a body of so many bytes has room now. Nothing is taken: a body that is announced and does not come keeps
    /// nobody out.
    ///
    /// # Errors
    /// 503 with `Retry-After`.
    pub(super) fn expect(&self, bytes: u64) -> Result<(), Problem> {
        if u64::try_from(self.0.available_permits()).is_ok_and(|free| bytes <= free) {
            Ok(())
        } else {
            Err(full())
        }
    }

    /// Takes room for bytes that have come, beside what was taken for those before them.
    ///
    /// # Errors
    /// 503 with `Retry-After`.
    pub(super) fn take(&self, taken: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), Problem> {
        let wanted = u32::try_from(bytes).map_err(|_| full())?;
        let more = Arc::clone(&self.0).try_acquire_many_owned(wanted).map_err(|_| full())?;
        match taken {
            Some(taken) => taken.merge(more),
            None => *taken = Some(more),
        }
        Ok(())
    }
}

fn full() -> Problem {
    Problem::new(Code::Unavailable).detail("too much is in hand at once").retry_after(1)
}

// === impl Held ===

impl From<Option<OwnedSemaphorePermit>> for Held {
    fn from(taken: Option<OwnedSemaphorePermit>) -> Self {
        Self { _taken: taken.map(Arc::new) }
    }
}
