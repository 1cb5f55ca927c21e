use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, watch};

use postern_common::Clock;
use postern_common::clock::Timestamp;

use super::{GateState, Permit, Permits, Precedence};
use crate::notification::{Channel, Lane, Order, Priority};

/// What acceptance and dispatch of this process know of each other: one desk a channel.
#[derive(Debug)]
pub(crate) struct Board {
    desks: [Arc<Desk>; 3],
    precedence: Arc<Precedence>,
    /// What the other replicas are to be told: lanes and the lowest place in each.
    pub(super) news: watch::Sender<BTreeMap<i16, Order>>,
    /// Whose turn it is to look at its lanes from their beginning: one channel at a time, so that
    /// the queue's connections are left to claims.
    pub(super) whole_looks: Arc<Semaphore>,
}

/// One channel's desk.
#[derive(Debug)]
pub(crate) struct Desk {
    permits: Permits,
    wake: Notify,
    waiting: Mutex<[Waiting; Lane::PER_CHANNEL]>,
    moved: Mutex<[Option<Order>; Lane::PER_CHANNEL]>,
    gate: AtomicU8,
    /// When a provider is probed next, in milliseconds; 0 while one can be called.
    next_probe: AtomicI64,
}

/// What holds back a channel's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Whether LOW flows.
    pub(crate) gate: GateState,
    /// When a provider is probed next; `None` while one can be called.
    pub(crate) next_probe_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Whether rows may wait in the lane. True until the lane was seen to its end.
    some: bool,
    /// Rises whenever a row is left waiting.
    signals: u64,
}

// === impl Board ===

impl Board {
    /// Desks with so many permits each.
    #[must_use]
    pub(crate) fn new(permits: [usize; 3], clock: Clock) -> Self {
        Self {
            desks: permits.map(|permits| Arc::new(Desk::new(permits))),
            precedence: Arc::new(Precedence::new(clock)),
            news: watch::Sender::new(BTreeMap::new()),
            whole_looks: Arc::new(Semaphore::new(1)),
        }
    }

    /// The desk of a channel.
    #[must_use]
    pub(crate) fn desk(&self, channel: Channel) -> &Arc<Desk> {
        &self.desks[channel.index()]
    }

    /// What is urgent, in any channel.
    #[must_use]
    pub(crate) fn precedence(&self) -> &Arc<Precedence> {
        &self.precedence
    }
}

// === impl Desk ===

impl Desk {
    fn new(permits: usize) -> Self {
        Self {
            permits: Permits::new(permits),
            wake: Notify::new(),
            waiting: Mutex::new(
                [Waiting {
                    some: true,
                    signals: 0,
                }; Lane::PER_CHANNEL],
            ),
            moved: Mutex::default(),
            gate: AtomicU8::new(0),
            next_probe: AtomicI64::new(0),
        }
    }

    /// A permit for a notification that is just being accepted, so that it is born leased; `None`
    /// when something that goes first is waiting, or no permit is free.
    #[must_use]
    pub(crate) fn lease(&self, lane: Lane) -> Option<Permit> {
        let blocked = lane.priority == Priority::Low && self.gate() != GateState::Open;
        let somebody_waits = {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting
                .iter()
                .take(lane.index() + 1)
                .any(|waiting| waiting.some)
        };
        if blocked || somebody_waits {
            return None;
        }
        self.permits.take(lane, 1.0, 1).pop()
    }

    /// The channel's permits.
    #[must_use]
    pub(crate) fn permits(&self) -> &Permits {
        &self.permits
    }

    /// Rows were left waiting in a lane.
    pub(crate) fn mark_waiting(&self, lane: Lane) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting[lane.index()].some = true;
        waiting[lane.index()].signals += 1;
        drop(waiting);
        self.wake();
    }

    /// A row was moved to this place, maybe below what the dispatcher has claimed already.
    pub(crate) fn note_moved(&self, lane: Lane, order: Order) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let lowest = &mut moved[lane.index()];
        *lowest = Some(lowest.map_or(order, |known| known.min(order)));
        drop(moved);
        self.mark_waiting(lane);
    }

    /// The lowest place that a row of each lane was moved to since the last time.
    pub(super) fn take_moved(&self) -> [Option<Order>; Lane::PER_CHANNEL] {
        std::mem::take(&mut *self.moved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often rows were left waiting in a lane.
    #[must_use]
    pub(crate) fn signals(&self, lane: Lane) -> u64 {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)[lane.index()].signals
    }

    /// A claim came to the end of a lane; what was left waiting since `signals` was read is not
    /// forgotten.
    pub(crate) fn seen_to_the_end(&self, lane: Lane, signals: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = &mut waiting[lane.index()];
        waiting.some = waiting.signals != signals;
    }

    /// In which lanes rows may wait.
    #[must_use]
    pub(crate) fn waiting(&self) -> [bool; Lane::PER_CHANNEL] {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .map(|waiting| waiting.some)
    }

    /// Whether LOW flows.
    #[must_use]
    pub(crate) fn gate(&self) -> GateState {
        GateState::from_code(self.gate.load(Ordering::Relaxed))
    }

    /// What holds back the queue, as of the last look.
    #[must_use]
    pub(crate) fn flow(&self) -> Flow {
        let next_probe = self.next_probe.load(Ordering::Relaxed);
        Flow {
            gate: self.gate(),
            next_probe_at: (next_probe > 0).then_some(Timestamp(next_probe)),
        }
    }

    pub(super) fn set_next_probe(&self, at: Option<Timestamp>) {
        self.next_probe
            .store(at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    pub(super) fn set_gate(&self, state: GateState) {
        self.gate.store(state.code(), Ordering::Relaxed);
    }

    /// Makes the dispatcher look.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns when there is reason to look: rows wait, or a permit came back.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}
