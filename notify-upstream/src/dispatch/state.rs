use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, watch};

use postern_common::Clock;
use postern_common::clock::Timestamp;

use super::{ChannelPermit, LowPriorityThrottle, PermitPool, UrgentWriteGate};
use crate::notification::{Channel, Lane, Order, PerChannel, Priority};

/// What acceptance and dispatch of this process know of each other: one channel a channel.
#[derive(Debug)]
pub(crate) struct DispatchState {
    channels: PerChannel<Arc<ChannelState>>,
    urgent_gate: Arc<UrgentWriteGate>,
    /// What the other replicas are to be told: lanes and the lowest place in each.
    pub(super) pending_wakeups: watch::Sender<BTreeMap<i16, Order>>,
    /// Whose turn it is to look at its lanes from their beginning: one channel at a time, so that
    /// the queue's connections are left to claims.
    pub(super) full_scan_slots: Arc<Semaphore>,
}

/// One channel's channel.
#[derive(Debug)]
pub(crate) struct ChannelState {
    permits: PermitPool,
    wake: Notify,
    waiting: Mutex<[LaneSignal; Lane::PER_CHANNEL]>,
    moved: Mutex<[Option<Order>; Lane::PER_CHANNEL]>,
    low_throttle: AtomicU8,
    /// When a provider is probed next, in milliseconds; 0 while one can be called.
    next_probe_ms: AtomicI64,
}

/// What holds back a channel's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelFlow {
    /// Whether LOW flows.
    pub(crate) low_throttle: LowPriorityThrottle,
    /// When a provider is probed next; `None` while one can be called.
    pub(crate) next_probe_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct LaneSignal {
    /// Whether rows may wait in the lane. True until the lane was seen to its end.
    may_wait: bool,
    /// Rises whenever a row is left waiting.
    signals: u64,
}

// === impl DispatchState ===

impl DispatchState {
    /// Desks with so many permits each.
    #[must_use]
    pub(crate) fn new(permits: &PerChannel<usize>, clock: Clock) -> Self {
        Self {
            channels: PerChannel::from_fn(|channel| {
                Arc::new(ChannelState::new(*permits.get(channel)))
            }),
            urgent_gate: Arc::new(UrgentWriteGate::new(clock)),
            pending_wakeups: watch::Sender::new(BTreeMap::new()),
            full_scan_slots: Arc::new(Semaphore::new(1)),
        }
    }

    /// The channel of a channel.
    #[must_use]
    pub(crate) fn channel(&self, channel: Channel) -> &Arc<ChannelState> {
        self.channels.get(channel)
    }

    /// What is urgent, in any channel.
    #[must_use]
    pub(crate) fn urgent_gate(&self) -> &Arc<UrgentWriteGate> {
        &self.urgent_gate
    }
}

// === impl ChannelState ===

impl ChannelState {
    fn new(permits: usize) -> Self {
        Self {
            permits: PermitPool::new(permits),
            wake: Notify::new(),
            waiting: Mutex::new(
                [LaneSignal {
                    may_wait: true,
                    signals: 0,
                }; Lane::PER_CHANNEL],
            ),
            moved: Mutex::default(),
            low_throttle: AtomicU8::new(0),
            next_probe_ms: AtomicI64::new(0),
        }
    }

    /// A permit for a notification that is just being accepted, so that it is born leased; `None`
    /// when something that goes first is waiting, or no permit is free.
    #[must_use]
    pub(crate) fn try_take_permit(&self, lane: Lane) -> Option<ChannelPermit> {
        let blocked =
            lane.priority == Priority::Low && self.low_throttle() != LowPriorityThrottle::Off;
        let lane_is_ahead = {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting
                .iter()
                .take(lane.index() + 1)
                .any(|waiting| waiting.may_wait)
        };
        if blocked || lane_is_ahead {
            return None;
        }
        self.permits.take(lane, 1.0, 1).pop()
    }

    /// The channel's permits.
    #[must_use]
    pub(crate) fn permits(&self) -> &PermitPool {
        &self.permits
    }

    /// Rows were left waiting in a lane.
    pub(crate) fn mark_waiting(&self, lane: Lane) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting[lane.index()].may_wait = true;
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
    pub(crate) fn mark_scanned(&self, lane: Lane, signals: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = &mut waiting[lane.index()];
        waiting.may_wait = waiting.signals != signals;
    }

    /// In which lanes rows may wait.
    #[must_use]
    pub(crate) fn waiting(&self) -> [bool; Lane::PER_CHANNEL] {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .map(|waiting| waiting.may_wait)
    }

    /// Whether LOW flows.
    #[must_use]
    pub(crate) fn low_throttle(&self) -> LowPriorityThrottle {
        LowPriorityThrottle::from_code(self.low_throttle.load(Ordering::Relaxed))
    }

    /// What holds back the queue, as of the last look.
    #[must_use]
    pub(crate) fn flow(&self) -> ChannelFlow {
        let next_probe_ms = self.next_probe_ms.load(Ordering::Relaxed);
        ChannelFlow {
            low_throttle: self.low_throttle(),
            next_probe_at: (next_probe_ms > 0).then_some(Timestamp(next_probe_ms)),
        }
    }

    pub(super) fn set_next_probe(&self, at: Option<Timestamp>) {
        self.next_probe_ms
            .store(at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    pub(super) fn set_low_throttle(&self, state: LowPriorityThrottle) {
        self.low_throttle.store(state.code(), Ordering::Relaxed);
    }

    /// Makes the dispatcher look.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns when there is reason to look: rows wait, or a permit came back.
    pub(crate) async fn wait_for_wakeup(&self) {
        self.wake.notified().await;
    }
}
