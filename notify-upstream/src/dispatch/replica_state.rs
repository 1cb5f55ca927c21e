//! State of this replica that changes of all replicas affect: whether wake-ups are received, when the
//! next delayed row is due, and which changes operators or other replicas have announced.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use tokio::time::Instant;

/// No delayed row is known.
const NOTHING_DUE: i64 = i64::MAX;

/// The shared state of the background tasks that react to other replicas.
#[derive(Debug)]
pub(crate) struct ReplicaState {
    /// Since when wake-ups of other replicas are received; `None` without a connection, and for a
    /// store of a single process.
    listening_since: Mutex<Option<Instant>>,
    /// When the next delayed row is due, in milliseconds since the epoch.
    next_due_ms: AtomicI64,
    /// Whether suppression lists were changed since the last call of
    /// [`ReplicaState::take_suppression_changed`].
    is_suppression_changed: AtomicBool,
    /// Whether providers were paused or resumed since the last call of
    /// [`ReplicaState::take_pauses_changed`].
    are_pauses_changed: AtomicBool,
}

// === impl ReplicaState ===

impl ReplicaState {
    pub(super) fn new() -> Self {
        Self {
            listening_since: Mutex::new(None),
            next_due_ms: AtomicI64::new(NOTHING_DUE),
            is_suppression_changed: AtomicBool::new(false),
            are_pauses_changed: AtomicBool::new(false),
        }
    }

    /// Returns since when wake-ups are received without interruption.
    pub(crate) fn listening_since(&self) -> Option<Instant> {
        *self.listening_since.lock()
    }

    pub(super) fn set_listening(&self, is_listening: bool) {
        *self.listening_since.lock() = is_listening.then(Instant::now);
    }

    /// Records that a delayed row is due at `at`.
    pub(crate) fn record_due(&self, at: Timestamp) {
        self.next_due_ms.fetch_min(at.0, Ordering::AcqRel);
    }

    /// Returns whether a known delayed row is due, and clears the due time if so.
    pub(crate) fn take_due(&self, now: Timestamp) -> bool {
        let is_due = self.next_due_ms.load(Ordering::Acquire) <= now.0;
        if is_due {
            self.next_due_ms.store(NOTHING_DUE, Ordering::Release);
        }
        is_due
    }

    pub(super) fn set_pauses_changed(&self) {
        self.are_pauses_changed.store(true, Ordering::Release);
    }

    /// Returns, and resets, whether a process has announced that a provider was paused or resumed.
    pub(crate) fn take_pauses_changed(&self) -> bool {
        self.are_pauses_changed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn set_suppression_changed(&self) {
        self.is_suppression_changed.store(true, Ordering::Release);
    }

    /// Returns, and resets, whether a process has announced a change of the suppression lists.
    pub(crate) fn take_suppression_changed(&self) -> bool {
        self.is_suppression_changed.swap(false, Ordering::AcqRel)
    }
}
