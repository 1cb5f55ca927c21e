//! Requests in flight to an address, which are ended when the address was removed and its time to drain
//! is over.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;

/// A request that can be ended from outside of its task.
pub(crate) trait Abortable: Send + Sync {
    /// Makes the request fail when its task is polled.
    fn abort(&self);
}

/// The requests in flight to an address.
#[derive(Default)]
pub(super) struct DrainList(Mutex<State>);

#[derive(Default)]
struct State {
    requests: Slab<(Arc<dyn Abortable>, Waker)>,
    /// Whether the time to drain is over.
    is_over: bool,
}

impl DrainList {
    /// Adds a request, whose task `waker` wakes. Returns the key to remove it; `None` if it was aborted,
    /// because the time to drain is over.
    pub(super) fn insert(&self, request: Arc<dyn Abortable>, waker: Waker) -> Option<usize> {
        let mut state = self.0.lock();
        if state.is_over {
            drop(state);
            request.abort();
            return None;
        }
        Some(state.requests.insert((request, waker)))
    }

    /// Removes a request that has ended.
    pub(super) fn remove(&self, key: usize) {
        let removed = self.0.lock().requests.try_remove(key);
        drop(removed);
    }

    /// Aborts all requests, and those that are added later. Returns their number.
    pub(super) fn abort_all(&self) -> usize {
        let mut state = self.0.lock();
        state.is_over = true;
        // While the lock is held, no request can end, and its connection cannot begin another one.
        for (request, _) in state.requests.iter().map(|(_, entry)| entry) {
            request.abort();
        }
        let aborted = std::mem::take(&mut state.requests);
        drop(state);
        let count = aborted.len();
        for (_, (_, waker)) in aborted {
            waker.wake();
        }
        count
    }
}

impl std::fmt::Debug for DrainList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrainList").finish_non_exhaustive()
    }
}
