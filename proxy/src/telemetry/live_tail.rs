//! The live tail: access events for the readers of `GET /admin/requests`, as server-sent events.
//!
//! The newest events are kept, and a reader begins with them. At most [`MAX_RATE`] events in a second
//! are formatted, once for all readers, each of which passes on what its filter selects. Events above
//! the rate, and those for which a reader is too slow, are dropped and counted, so that no reader
//! delays a request or needs more memory.

mod filter;
mod reader;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::Instant;

use super::metrics::LiveTailMetrics;
pub(crate) use filter::TailFilter;
pub(crate) use reader::TailReader;

pub(crate) const MAX_TAILS: usize = 8;
const MAX_WAITING_EVENTS: usize = 512;
const MAX_RECENT_EVENTS: usize = 1000;
/// Maximum bytes of the kept events.
const MAX_RECENT_BYTES: usize = 1 << 20;
const EVENT_PREFIX: &[u8] = b"event: request\ndata: ";
/// Maximum events per second.
const MAX_RATE: NonZeroU32 = NonZeroU32::new(500).expect("is not zero");
/// The events that are admitted at once: those of this time.
const MAX_BURST: Duration = Duration::from_millis(250);

/// The readers that follow the requests of the gateway.
#[derive(Debug)]
pub(crate) struct LiveTail {
    events: broadcast::Sender<Bytes>,
    recent: Mutex<RecentEvents>,
    /// The time at which the next event would be due at [`MAX_RATE`]: the generic cell rate
    /// algorithm (ITU-T I.371), which accepts a burst of [`MAX_BURST`].
    due_at: Mutex<Instant>,
    /// Events above the maximum rate.
    skipped: Arc<AtomicU64>,
    places: Arc<Semaphore>,
    metrics: LiveTailMetrics,
}

/// The newest events, as server-sent events.
#[derive(Debug, Default)]
struct RecentEvents {
    events: VecDeque<Bytes>,
    bytes: usize,
}

/// What an event of the live tail has beside the members of the access event.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct TailDetails<'a> {
    /// The requested authority; empty if there is none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) host: &'a str,
    /// `forwarded`, `answered` (by the gateway itself), `rejected`, or `aborted` by the client.
    pub(crate) decision: &'static str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) groups: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) scopes: &'a [String],
}

impl LiveTail {
    pub(crate) fn new(metrics: LiveTailMetrics) -> Arc<Self> {
        Arc::new(Self {
            events: broadcast::Sender::new(MAX_WAITING_EVENTS),
            recent: Mutex::default(),
            due_at: Mutex::new(Instant::now()),
            skipped: Arc::default(),
            places: Arc::new(Semaphore::new(MAX_TAILS)),
            metrics,
        })
    }

    /// Returns the kept events that a filter selects, the oldest first.
    pub(crate) fn recent(&self, filter: &TailFilter) -> Vec<Bytes> {
        let mut events = self.recent.lock().events.clone();
        events.retain(|event| filter.selects(event));
        events.into()
    }

    /// Adds a reader. Returns `None` if there are [`MAX_TAILS`] others.
    pub(crate) fn open(&self, filter: TailFilter) -> Option<TailReader> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        // No event is sent between both.
        let recent = self.recent.lock();
        let (kept, events) = (recent.events.clone(), self.events.subscribe());
        drop(recent);
        let skipped = Arc::clone(&self.skipped);
        let reader = TailReader::new(filter, events, skipped, self.metrics.clone(), place);
        Some(reader.beginning_with(&kept))
    }

    /// Returns whether the maximum rate admits another event, which is then published.
    pub(crate) fn admits(&self) -> bool {
        // No request waits for another one here.
        let due_at = self.due_at.try_lock();
        let admits = due_at.is_some_and(|mut due_at| {
            let now = Instant::now();
            let due = now.max(*due_at);
            let admits = due <= now + MAX_BURST;
            if admits {
                *due_at = due + Duration::from_secs(1) / MAX_RATE.get();
            }
            admits
        });
        if !admits && self.places.available_permits() < MAX_TAILS {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            self.metrics.dropped.inc();
        }
        admits
    }

    /// Sends an event to the readers. `line` is the access event as one line of JSON.
    pub(crate) fn publish(&self, line: &[u8], details: &TailDetails<'_>) {
        let event = Bytes::from(details.server_sent_event(line));
        let mut recent = self.recent.lock();
        recent.push(event.clone());
        let _there_may_be_no_reader = self.events.send(event);
    }
}

impl RecentEvents {
    /// Adds an event, for which the oldest are forgotten.
    fn push(&mut self, event: Bytes) {
        self.bytes += event.len();
        self.events.push_back(event);
        while self.events.len() > MAX_RECENT_EVENTS || self.bytes > MAX_RECENT_BYTES {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }
}

impl TailDetails<'_> {
    /// Returns the access event with the further members as a server-sent event.
    fn server_sent_event(&self, line: &[u8]) -> Vec<u8> {
        let object = line.strip_suffix(b"}\n").unwrap_or(line);
        let mut event = Vec::with_capacity(object.len() + 256);
        event.extend_from_slice(EVENT_PREFIX);
        event.extend_from_slice(object);
        event.push(b',');
        let members = event.len();
        let _memory_only = serde_json::to_writer(&mut event, self);
        // Both objects become one.
        event.remove(members);
        event.extend_from_slice(b"\n\n");
        event
    }
}

#[cfg(test)]
mod tests;
