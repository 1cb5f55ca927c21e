//! The live tail: access events for the readers of `GET /admin/requests`, as server-sent events.
//!
//! Without a reader, a request pays for one relaxed load. With readers, the event of a request that
//! at least one of them selects is formatted once and added to their queues. A queue is bounded:
//! events that do not fit are dropped and counted, so that a slow reader neither delays a request
//! nor needs more memory. Events above the maximum rate of a reader are counted without being formatted.

mod filter;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::time::Instant;

use super::access_log::{AccessEvent, append_text};
use super::metrics::LiveTailMetrics;
pub(crate) use filter::TailFilter;
use queue::TailQueue;
pub(crate) use queue::TailReader;

/// Maximum number of readers.
pub(crate) const MAX_TAILS: usize = 8;

/// The readers that follow the requests of the gateway.
#[derive(Debug)]
pub(crate) struct LiveTail {
    /// Whether there is a reader.
    is_followed: AtomicBool,
    tails: RwLock<Vec<Arc<TailQueue>>>,
    metrics: LiveTailMetrics,
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

/// The readers that select an event.
#[derive(Debug)]
pub(crate) struct SelectedTails(Vec<Arc<TailQueue>>);

// === impl LiveTail ===

impl LiveTail {
    pub(crate) fn new(metrics: LiveTailMetrics) -> Arc<Self> {
        Arc::new(Self {
            is_followed: AtomicBool::new(false),
            tails: RwLock::default(),
            metrics,
        })
    }

    /// Returns whether there is a reader, by a relaxed load: a request that ends while a reader
    /// comes or goes may be seen or not.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed)
    }

    /// Adds a reader, for which a stalled one (`TailQueue::is_stalled`) is disconnected. Returns `None` if
    /// there are [`MAX_TAILS`] others.
    pub(crate) fn open(self: &Arc<Self>, filter: TailFilter) -> Option<TailReader> {
        let queue = Arc::new(TailQueue::new(filter, self.metrics.dropped.clone()));
        let mut tails = self.tails.write();
        if tails.len() >= MAX_TAILS {
            let now = Instant::now();
            let stalled = tails.iter().position(|tail| tail.is_stalled(now))?;
            tails.swap_remove(stalled).close();
        }
        tails.push(Arc::clone(&queue));
        self.note_readers(tails.len());
        drop(tails);
        Some(TailReader::new(queue, Arc::clone(self)))
    }

    /// Removes a reader.
    fn close(&self, queue: &Arc<TailQueue>) {
        let mut tails = self.tails.write();
        tails.retain(|tail| !Arc::ptr_eq(tail, queue));
        self.note_readers(tails.len());
    }

    fn note_readers(&self, count: usize) {
        self.is_followed.store(count > 0, Ordering::Relaxed);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.tails.set(count);
    }

    /// Returns the readers that select the event; `None` if there is none.
    pub(crate) fn select(&self, event: &AccessEvent<'_>) -> Option<SelectedTails> {
        let tails = self.tails.read();
        let selects = |tail: &&Arc<TailQueue>| tail.filter.selects(event) && tail.admits();
        let selected = tails.iter().filter(selects);
        let selected: Vec<_> = selected.map(Arc::clone).collect();
        (!selected.is_empty()).then_some(SelectedTails(selected))
    }
}

// === impl SelectedTails ===

impl SelectedTails {
    /// Adds an event to the queues. `line` is the access event as one line of JSON.
    pub(crate) fn publish(&self, line: &[u8], details: &TailDetails<'_>) {
        let event = Bytes::from(details.server_sent_event(line));
        for tail in &self.0 {
            tail.push(&event);
        }
    }
}

// === impl TailDetails ===

impl TailDetails<'_> {
    /// Returns the access event with the further members as a server-sent event.
    fn server_sent_event(&self, line: &[u8]) -> Vec<u8> {
        let object = line.strip_suffix(b"}\n").unwrap_or(line);
        let mut event = Vec::with_capacity(object.len() + 256);
        event.extend_from_slice(b"event: request\ndata: ");
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
