//! The bounded queue of one reader, and the stream that it becomes.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{LiveTail, TailFilter};

/// Maximum number of events in a queue.
pub(super) const MAX_QUEUED_EVENTS: usize = 1024;
/// Maximum bytes of the events in a queue.
pub(super) const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Minimum time between two batches, so that a reader of many requests costs few wake-ups.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);
/// The events of a reader with a maximum rate that are admitted at once: those of this time.
pub(super) const MAX_BURST: Duration = Duration::from_millis(250);
/// Minimum time between two reports of dropped events.
pub(super) const DROP_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an event after which a comment is sent, so that neither side takes the connection
/// for dead.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time after which a reader that accepts nothing is stalled: two comments were due.
pub(super) const STALL_TIMEOUT: Duration = KEEP_ALIVE_INTERVAL.saturating_mul(2);

/// The queue of one reader.
#[derive(Debug)]
pub(super) struct TailQueue {
    pub(super) filter: TailFilter,
    state: Mutex<QueueState>,
    /// Notified when the queue is no longer empty, and when it is closed.
    wake: Notify,
    dropped_total: IntCounter,
}

/// The pace of a reader with a maximum rate: the generic cell rate algorithm (ITU-T I.371), which
/// accepts a burst of [`MAX_BURST`].
#[derive(Debug)]
pub(super) struct Pace {
    /// Time between two events at the maximum rate.
    interval: Duration,
    /// The time at which the next event would be due at the maximum rate.
    due_at: Instant,
}

#[derive(Debug)]
struct QueueState {
    pace: Option<Pace>,
    events: VecDeque<Bytes>,
    bytes: usize,
    /// Dropped events that were not reported.
    dropped: u64,
    /// The last time at which the reader asked for events.
    asked_at: Instant,
    is_closed: bool,
}

/// What a reader takes out of its queue.
#[derive(Debug)]
struct Batch {
    events: VecDeque<Bytes>,
    bytes: usize,
    /// Dropped events to report now.
    dropped: u64,
    /// Whether there are dropped events to report later.
    has_unreported: bool,
}

/// A reader of the live tail. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct TailReader {
    queue: Arc<TailQueue>,
    live_tail: Arc<LiveTail>,
    /// Number of events that were taken.
    taken: u64,
    dropped: u64,
    next_batch_at: Instant,
    next_report_at: Instant,
}

// === impl TailQueue ===

impl TailQueue {
    pub(super) fn new(filter: TailFilter, dropped_total: IntCounter) -> Self {
        let now = Instant::now();
        let state = QueueState {
            pace: filter.rate.map(|rate| Pace::new(rate, now)),
            events: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            asked_at: now,
            is_closed: false,
        };
        Self {
            filter,
            state: Mutex::new(state),
            wake: Notify::new(),
            dropped_total,
        }
    }

    /// Returns whether the maximum rate of the reader admits another event; counts one that it does
    /// not admit as dropped. Called before an event is formatted.
    pub(super) fn admits(&self) -> bool {
        if self.filter.rate.is_none() {
            return true;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.pace.as_mut().is_none_or(|pace| pace.admits(now)) {
            return true;
        }
        state.dropped += 1;
        let is_first = state.dropped == 1;
        drop(state);
        self.dropped_total.inc();
        if is_first {
            // So that the reader reports it, also if no other event follows.
            self.wake.notify_one();
        }
        false
    }

    /// Adds an event, or counts it as dropped if the queue is full.
    pub(super) fn push(&self, event: &Bytes) {
        let mut state = self.state.lock();
        let bytes = state.bytes + event.len();
        if state.events.len() >= MAX_QUEUED_EVENTS || bytes > MAX_QUEUED_BYTES {
            state.dropped += 1;
            drop(state);
            self.dropped_total.inc();
            return;
        }
        let was_empty = state.events.is_empty();
        state.events.push_back(event.clone());
        state.bytes = bytes;
        drop(state);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Returns whether the reader has not asked for events for [`STALL_TIMEOUT`].
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.state.lock().asked_at) > STALL_TIMEOUT
    }

    /// Ends the stream of the reader.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Takes all events; `None` if the queue is closed.
    fn take(&self, now: Instant, reports_dropped: bool) -> Option<Batch> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.asked_at = now;
        let dropped = match reports_dropped {
            true => std::mem::take(&mut state.dropped),
            false => 0,
        };
        Some(Batch {
            events: std::mem::take(&mut state.events),
            bytes: std::mem::take(&mut state.bytes),
            dropped,
            has_unreported: state.dropped > 0,
        })
    }
}

// === impl Pace ===

impl Pace {
    pub(super) fn new(rate: NonZeroU32, now: Instant) -> Self {
        Self {
            interval: Duration::from_secs(1) / rate.get(),
            due_at: now,
        }
    }

    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let due_at = self.due_at.max(now);
        let admits = due_at <= now + MAX_BURST;
        if admits {
            self.due_at = due_at + self.interval;
        }
        admits
    }
}

// === impl TailReader ===

impl TailReader {
    pub(super) fn new(queue: Arc<TailQueue>, live_tail: Arc<LiveTail>) -> Self {
        let now = Instant::now();
        Self {
            queue,
            live_tail,
            taken: 0,
            dropped: 0,
            next_batch_at: now,
            next_report_at: now + DROP_REPORT_INTERVAL,
        }
    }

    /// Returns the next part of the stream: events, a report of dropped events, or a comment after
    /// [`KEEP_ALIVE_INTERVAL`]. Returns `None` if the reader was disconnected for another one.
    pub(crate) async fn next_chunk(&mut self) -> Option<Bytes> {
        sleep_until(self.next_batch_at).await;
        let keep_alive_at = Instant::now() + KEEP_ALIVE_INTERVAL;
        loop {
            let now = Instant::now();
            let batch = self.queue.take(now, now >= self.next_report_at)?;
            if !batch.events.is_empty() || batch.dropped > 0 {
                self.next_batch_at = now + BATCH_INTERVAL;
                return Some(self.chunk(&batch, now));
            }
            if now >= keep_alive_at {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            }
            let until = match batch.has_unreported {
                true => self.next_report_at.min(keep_alive_at),
                false => keep_alive_at,
            };
            tokio::select! {
                () = self.queue.wake.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    fn chunk(&mut self, batch: &Batch, now: Instant) -> Bytes {
        let mut chunk = BytesMut::with_capacity(batch.bytes + 64);
        for event in &batch.events {
            chunk.extend_from_slice(event);
        }
        self.taken += batch.events.len() as u64;
        if batch.dropped > 0 {
            let report = format!("event: dropped\ndata: {{\"count\":{}}}\n\n", batch.dropped);
            chunk.extend_from_slice(report.as_bytes());
            self.dropped += batch.dropped;
            self.next_report_at = now + DROP_REPORT_INTERVAL;
        }
        chunk.freeze()
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        self.live_tail.close(&self.queue);
        let (events, dropped) = (self.taken, self.dropped + self.queue.state.lock().dropped);
        tracing::info!(events, dropped, "live tail closed");
    }
}
