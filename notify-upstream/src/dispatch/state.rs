//! State that intake and dispatch share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use postern_common::Clock;
use postern_common::clock::Timestamp;

use super::{ChannelPermit, LowPriorityThrottle, PermitPool, ReplicaState, UrgentWriteGate};
use crate::notification::{Channel, Lane, Order, PerChannel, Priority};

/// The state that intake and dispatch of this process share.
#[derive(Debug)]
pub(crate) struct DispatchState {
    channels: PerChannel<Arc<ChannelState>>,
    urgent_gate: Arc<UrgentWriteGate>,
    replica: ReplicaState,
    /// The wake-ups that other replicas have not been sent yet: the lowest order by lane code.
    pub(super) pending_wakeups: watch::Sender<BTreeMap<i16, Order>>,
    /// The permit to run a full scan: one channel at a time, so that connections remain for claims.
    pub(super) full_scan_slots: Arc<Semaphore>,
}

/// The state of one channel.
#[derive(Debug)]
pub(crate) struct ChannelState {
    permits: PermitPool,
    wake: Notify,
    waiting: Mutex<[LaneSignal; Lane::PER_CHANNEL]>,
    moved: Mutex<[Option<Order>; Lane::PER_CHANNEL]>,
    /// Whether the lanes have to be scanned now: rows were put into them at unknown positions.
    rescan: AtomicBool,
    low_throttle: AtomicU8,
    /// The time of the next probe, in milliseconds since the epoch; 0 while a provider can be
    /// called.
    next_probe_ms: AtomicI64,
    /// Whether operators have paused all providers.
    is_paused: AtomicBool,
}

/// The restrictions on the queue of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelFlow {
    /// The throttling of LOW.
    pub(crate) low_throttle: LowPriorityThrottle,
    /// The time of the next probe; `None` while a provider can be called.
    pub(crate) next_probe_at: Option<Timestamp>,
    /// Whether operators have paused all providers.
    pub(crate) is_paused: bool,
}

#[derive(Clone, Copy, Debug)]
struct LaneSignal {
    /// Whether rows may be waiting in the lane. True until a claim has reached the end of the lane.
    may_wait: bool,
    /// Counts how often rows were left waiting.
    signals: u64,
}

// === impl DispatchState ===

impl DispatchState {
    /// Creates the state of all channels with the given numbers of permits.
    #[must_use]
    pub(crate) fn new(permits: &PerChannel<usize>, clock: Clock) -> Self {
        Self {
            channels: PerChannel::from_fn(|channel| {
                Arc::new(ChannelState::new(*permits.get(channel)))
            }),
            urgent_gate: Arc::new(UrgentWriteGate::new(clock)),
            replica: ReplicaState::new(),
            pending_wakeups: watch::Sender::new(BTreeMap::new()),
            full_scan_slots: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the state of a channel.
    #[must_use]
    pub(crate) fn channel(&self, channel: Channel) -> &Arc<ChannelState> {
        self.channels.get(channel)
    }

    /// Returns what is known of the other replicas.
    #[must_use]
    pub(crate) fn replica(&self) -> &ReplicaState {
        &self.replica
    }

    /// Returns the gate for urgent writes of all channels.
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
            rescan: AtomicBool::new(false),
            low_throttle: AtomicU8::new(0),
            next_probe_ms: AtomicI64::new(0),
            is_paused: AtomicBool::new(false),
        }
    }

    /// Takes a permit for a notification that is being accepted, so that it can be leased at
    /// acceptance. Returns `None` if rows of the same or a higher priority may be waiting, if LOW
    /// is throttled, or if no permit is free.
    #[must_use]
    pub(crate) fn try_take_permit(&self, lane: Lane) -> Option<ChannelPermit> {
        let blocked =
            lane.priority == Priority::Low && self.low_throttle() != LowPriorityThrottle::Off;
        let lane_is_ahead = {
            let waiting = self.waiting.lock();
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

    /// Returns the permits of the channel.
    #[must_use]
    pub(crate) fn permits(&self) -> &PermitPool {
        &self.permits
    }

    /// Records that rows were left waiting in a lane, and wakes the dispatcher.
    pub(crate) fn mark_waiting(&self, lane: Lane) {
        let mut waiting = self.waiting.lock();
        waiting[lane.index()].may_wait = true;
        waiting[lane.index()].signals += 1;
        drop(waiting);
        self.wake();
    }

    /// Records that a row was moved to `order`, possibly below the cursor of the dispatcher.
    pub(crate) fn record_moved(&self, lane: Lane, order: Order) {
        let mut moved = self.moved.lock();
        let lowest = &mut moved[lane.index()];
        *lowest = Some(lowest.map_or(order, |known| known.min(order)));
        drop(moved);
        self.mark_waiting(lane);
    }

    /// Returns, and resets, the lowest order that a row of each lane was moved to.
    pub(super) fn take_moved(&self) -> [Option<Order>; Lane::PER_CHANNEL] {
        std::mem::take(&mut *self.moved.lock())
    }

    /// Requests a scan of the lanes.
    pub(super) fn request_scan(&self) {
        self.rescan.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns, and resets, whether a scan was requested.
    pub(super) fn take_scan_request(&self) -> bool {
        self.rescan.swap(false, Ordering::AcqRel)
    }

    /// Returns whether rows may be waiting or are in delivery.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting().contains(&true) || self.permits.in_use() > 0
    }

    /// Returns how often rows were left waiting in a lane.
    #[must_use]
    pub(crate) fn signals(&self, lane: Lane) -> u64 {
        self.waiting.lock()[lane.index()].signals
    }

    /// Records that a claim reached the end of a lane, unless rows were left waiting since
    /// `signals` was read.
    pub(crate) fn mark_scanned(&self, lane: Lane, signals: u64) {
        let mut waiting = self.waiting.lock();
        let waiting = &mut waiting[lane.index()];
        waiting.may_wait = waiting.signals != signals;
    }

    /// Returns the lanes in which rows may be waiting.
    #[must_use]
    pub(crate) fn waiting(&self) -> [bool; Lane::PER_CHANNEL] {
        self.waiting.lock().map(|waiting| waiting.may_wait)
    }

    /// Returns the current throttling of LOW.
    #[must_use]
    pub(crate) fn low_throttle(&self) -> LowPriorityThrottle {
        LowPriorityThrottle::from_code(self.low_throttle.load(Ordering::Relaxed))
    }

    /// Returns the restrictions on the queue as of the last scan.
    #[must_use]
    pub(crate) fn flow(&self) -> ChannelFlow {
        let next_probe_ms = self.next_probe_ms.load(Ordering::Relaxed);
        ChannelFlow {
            low_throttle: self.low_throttle(),
            next_probe_at: (next_probe_ms > 0).then_some(Timestamp(next_probe_ms)),
            is_paused: self.is_paused.load(Ordering::Relaxed),
        }
    }

    pub(super) fn set_next_probe(&self, at: Option<Timestamp>) {
        self.next_probe_ms
            .store(at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    pub(super) fn set_low_throttle(&self, state: LowPriorityThrottle) {
        self.low_throttle.store(state.code(), Ordering::Relaxed);
    }

    /// Wakes the dispatcher.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for a wake-up: rows are waiting, or a permit was released.
    pub(crate) async fn wait_for_wakeup(&self) {
        self.wake.notified().await;
    }
}
