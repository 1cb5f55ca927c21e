//! The live tail: access events for the readers of `GET /admin/requests`, as server-sent events.
//!
//! The newest events are kept, and a reader begins with them. At most [`MAX_RATE`] events in a second
//! are kept, and as many are sent to each reader, so that a busy gateway does not format the others.
//! The event of a request that a reader selects is formatted once and sent to its channel. Events that
//! do not fit are dropped and counted, so that a slow reader neither delays a request nor needs more
//! memory.

mod filter;
mod history;
mod reader;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::access_log::{AccessEvent, append_text};
use super::metrics::LiveTailMetrics;
pub(crate) use filter::TailFilter;
use history::EventHistory;
use reader::Tail;
pub(crate) use reader::TailReader;

/// Maximum number of readers.
pub(crate) const MAX_TAILS: usize = 8;
/// What precedes the JSON of an event.
const EVENT_PREFIX: &[u8] = b"event: request\ndata: ";
/// Maximum events per second.
const MAX_RATE: NonZeroU32 = NonZeroU32::new(500).expect("is not zero");
/// The events that are admitted at once: those of this time.
const MAX_BURST: Duration = Duration::from_millis(250);

/// The readers that follow the requests of the gateway.
#[derive(Debug)]
pub(crate) struct LiveTail {
    tails: RwLock<Vec<Arc<Tail>>>,
    history: Mutex<EventHistory>,
    pace: Mutex<Pace>,
    metrics: LiveTailMetrics,
}

/// Admits [`MAX_RATE`] events: the generic cell rate algorithm (ITU-T I.371), which accepts a burst
/// of [`MAX_BURST`].
#[derive(Debug)]
struct Pace {
    /// The time at which the next event would be due at the maximum rate.
    due_at: Instant,
}

/// What an event of the live tail has beside the members of the access event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailDetails<'a> {
    /// The requested authority; empty if there is none.
    pub(crate) host: &'a str,
    /// `forwarded`, `answered` (by the gateway itself), `rejected`, or `aborted` by the client.
    pub(crate) decision: &'static str,
    /// The groups of a user.
    pub(crate) groups: &'a [String],
    /// The scopes of the caller.
    pub(crate) scopes: &'a [String],
}

/// The readers that select an event, and whether it is kept for later ones.
#[derive(Debug)]
pub(crate) struct SelectedTails<'a> {
    tails: Vec<Arc<Tail>>,
    history: Option<&'a Mutex<EventHistory>>,
}

// === impl LiveTail ===

impl LiveTail {
    pub(crate) fn new(metrics: LiveTailMetrics) -> Arc<Self> {
        Arc::new(Self {
            tails: RwLock::default(),
            history: Mutex::default(),
            pace: Mutex::new(Pace::new()),
            metrics,
        })
    }

    /// Returns the kept events that a filter selects, the oldest first.
    pub(crate) fn recent(&self, filter: &TailFilter) -> Vec<Bytes> {
        self.history.lock().select(filter)
    }

    /// Adds a reader in place of stalled ones. Returns `None` if there are [`MAX_TAILS`] others.
    pub(crate) fn open(self: &Arc<Self>, filter: TailFilter) -> Option<TailReader> {
        let mut tails = self.tails.write();
        tails.retain(|tail| !tail.is_stalled());
        if tails.len() >= MAX_TAILS {
            return None;
        }
        let recent = self.recent(&filter);
        let (tail, events) = Tail::new(filter, self.metrics.dropped.clone());
        tails.push(Arc::clone(&tail));
        self.note_readers(tails.len());
        drop(tails);
        Some(TailReader::new(tail, events, recent, Arc::clone(self)))
    }

    fn contains(&self, tail: &Arc<Tail>) -> bool {
        let tails = self.tails.read();
        tails.iter().any(|known| Arc::ptr_eq(known, tail))
    }

    /// Removes a reader.
    fn close(&self, tail: &Arc<Tail>) {
        let mut tails = self.tails.write();
        tails.retain(|known| !Arc::ptr_eq(known, tail));
        self.note_readers(tails.len());
    }

    fn note_readers(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.tails.set(count);
    }

    /// Returns the readers that select the event; `None` if there is none and it is not kept.
    pub(crate) fn select(&self, event: &AccessEvent<'_>) -> Option<SelectedTails<'_>> {
        let tails = self.tails.read();
        let selects = |tail: &&Arc<Tail>| tail.filter.selects(event) && tail.admits();
        let selected = tails.iter().filter(selects);
        let tails: Vec<_> = selected.map(Arc::clone).collect();
        // No request waits for another one here.
        let mut pace = self.pace.try_lock();
        let is_kept = pace
            .as_mut()
            .is_some_and(|pace| pace.admits(Instant::now()));
        let history = is_kept.then_some(&self.history);
        (!tails.is_empty() || is_kept).then_some(SelectedTails { tails, history })
    }
}

// === impl Pace ===

impl Pace {
    fn new() -> Self {
        Self {
            due_at: Instant::now(),
        }
    }

    fn admits(&mut self, now: Instant) -> bool {
        let due_at = self.due_at.max(now);
        let admits = due_at <= now + MAX_BURST;
        if admits {
            self.due_at = due_at + Duration::from_secs(1) / MAX_RATE.get();
        }
        admits
    }
}

// === impl SelectedTails ===

impl SelectedTails<'_> {
    /// Sends an event to the readers. `line` is the access event as one line of JSON.
    pub(crate) fn publish(&self, line: &[u8], details: &TailDetails<'_>) {
        let event = Bytes::from(details.server_sent_event(line));
        for tail in &self.tails {
            tail.push(&event);
        }
        if let Some(history) = self.history {
            history.lock().push(event);
        }
    }
}

// === impl TailDetails ===

impl TailDetails<'_> {
    /// Returns the access event with the further members as a server-sent event.
    fn server_sent_event(&self, line: &[u8]) -> Vec<u8> {
        let object = line.strip_suffix(b"}\n").unwrap_or(line);
        let mut event = Vec::with_capacity(object.len() + 256);
        event.extend_from_slice(EVENT_PREFIX);
        event.extend_from_slice(object);
        self.append_members(&mut event);
        event.extend_from_slice(b"}\n\n");
        event
    }

    fn append_members(&self, event: &mut Vec<u8>) {
        append_text(event, br#","decision":""#, Some(self.decision));
        append_text(
            event,
            br#","host":""#,
            Some(self.host).filter(|host| !host.is_empty()),
        );
        append_list(event, br#","groups":["#, self.groups);
        append_list(event, br#","scopes":["#, self.scopes);
    }
}

/// Appends a list of strings, unless it is empty.
fn append_list(event: &mut Vec<u8>, key: &[u8], values: &[String]) {
    let Some((first, others)) = values.split_first() else {
        return;
    };
    event.extend_from_slice(key);
    append_text(event, b"\"", Some(first));
    for value in others {
        append_text(event, b",\"", Some(value));
    }
    event.push(b']');
}

#[cfg(test)]
mod tests;
