//! State that intake and dispatch share.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use postern_core::clock::Timestamp;

use super::{LowPriorityThrottle, PermitPool};
use crate::notification::{Channel, Lane, PerChannel, Priority};

/// The state that intake and dispatch of this process share.
pub(crate) struct DispatchState {
    channels: PerChannel<Arc<ChannelState>>,
}

/// The state of one channel.
pub(crate) struct ChannelState {
    pub(crate) permits: PermitPool,
    wake: Notify,
    waiting: Mutex<[LaneSignal; Lane::PER_CHANNEL]>,
    flow: Mutex<ChannelFlow>,
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
    /// Counts how often rows were put into the lane.
    signals: u64,
}

// === impl ChannelFlow ===

impl ChannelFlow {
    /// Returns the reason why rows of a priority wait.
    pub(crate) fn wait_reason(&self, priority: Priority) -> Option<&'static str> {
        if self.is_paused {
            Some("PROVIDER_PAUSED")
        } else if self.next_probe_at.is_some() {
            Some("PROVIDER_UNAVAILABLE")
        } else {
            let throttle = self.low_throttle.wait_reason();
            throttle.filter(|_| priority == Priority::Low)
        }
    }
}

// === impl DispatchState ===

impl DispatchState {
    /// Creates the state of all channels with the given numbers of permits, and of the concurrent
    /// calls that their providers allow.
    pub(crate) fn new(permits: &PerChannel<usize>, calls: &PerChannel<usize>) -> Self {
        Self {
            channels: PerChannel::from_fn(|channel| {
                let permits = PermitPool::new(*permits.get(channel), *calls.get(channel));
                Arc::new(ChannelState::new(permits))
            }),
        }
    }

    pub(crate) fn channel(&self, channel: Channel) -> &Arc<ChannelState> {
        self.channels.get(channel)
    }
}

// === impl ChannelState ===

impl ChannelState {
    fn new(permits: PermitPool) -> Self {
        let unknown = LaneSignal {
            may_wait: true,
            signals: 0,
        };
        Self {
            permits,
            wake: Notify::new(),
            waiting: Mutex::new([unknown; Lane::PER_CHANNEL]),
            flow: Mutex::default(),
        }
    }

    /// Records that rows wait in a lane, and wakes the dispatcher.
    pub(crate) fn mark_waiting(&self, lane: Lane) {
        let mut waiting = self.waiting.lock();
        let signal = &mut waiting[lane.index()];
        signal.may_wait = true;
        signal.signals += 1;
        drop(waiting);
        self.wake();
    }

    /// Records that rows may wait in all lanes.
    pub(crate) fn mark_all_waiting(&self) {
        for signal in &mut *self.waiting.lock() {
            signal.may_wait = true;
            signal.signals += 1;
        }
        self.wake();
    }

    /// Returns how often rows were put into a lane.
    pub(crate) fn signals(&self, lane: Lane) -> u64 {
        self.waiting.lock()[lane.index()].signals
    }

    /// Records that a claim reached the end of a lane, unless rows were put into it since
    /// `signals` was read.
    pub(crate) fn mark_empty(&self, lane: Lane, signals: u64) {
        let mut waiting = self.waiting.lock();
        let waiting = &mut waiting[lane.index()];
        waiting.may_wait = waiting.signals != signals;
    }

    /// Returns the lanes in which rows may be waiting.
    pub(crate) fn waiting(&self) -> [bool; Lane::PER_CHANNEL] {
        self.waiting.lock().map(|waiting| waiting.may_wait)
    }

    /// Returns the restrictions on the queue as of the last poll.
    pub(crate) fn flow(&self) -> ChannelFlow {
        *self.flow.lock()
    }

    pub(super) fn set_flow(&self, flow: ChannelFlow) {
        *self.flow.lock() = flow;
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
