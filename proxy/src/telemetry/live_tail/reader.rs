//! A reader, and the stream that its channel becomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::{LiveTail, Pace, TailFilter};

/// Maximum number of events that wait for a reader.
pub(super) const MAX_WAITING_EVENTS: usize = 512;
/// Minimum time between two chunks, so that a reader of many requests costs few wake-ups.
const CHUNK_INTERVAL: Duration = Duration::from_millis(20);
/// Time without an event after which a comment is sent, so that neither side takes the connection
/// for dead.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time without reading after which a reader for which no more events fit loses its place.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A reader, as requests see it.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) filter: TailFilter,
    pace: Mutex<Pace>,
    events: mpsc::Sender<Bytes>,
    last_read: Mutex<Instant>,
    /// Dropped events that were not reported.
    dropped: AtomicU64,
    dropped_total: IntCounter,
}

/// A reader of the live tail. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct TailReader {
    tail: Arc<Tail>,
    events: mpsc::Receiver<Bytes>,
    /// The events with which it begins.
    recent: Vec<Bytes>,
    live_tail: Arc<LiveTail>,
    next_chunk_at: Instant,
}

// === impl Tail ===

impl Tail {
    pub(super) fn new(
        filter: TailFilter,
        dropped_total: IntCounter,
    ) -> (Arc<Self>, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        let tail = Self {
            filter,
            pace: Mutex::new(Pace::new()),
            events: sender,
            last_read: Mutex::new(Instant::now()),
            dropped: AtomicU64::new(0),
            dropped_total,
        };
        (Arc::new(tail), receiver)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.events.capacity() == 0 && self.last_read.lock().elapsed() > STALL_TIMEOUT
    }

    /// Returns whether the maximum rate admits another event; counts one that it does not admit as
    /// dropped. Called before an event is formatted.
    pub(super) fn admits(&self) -> bool {
        let admits = self.pace.lock().admits(Instant::now());
        if !admits {
            self.count_dropped();
        }
        admits
    }

    /// Sends an event to the reader, or counts it as dropped if too many wait.
    pub(super) fn push(&self, event: &Bytes) {
        if self.events.try_send(event.clone()).is_err() {
            self.count_dropped();
        }
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.dropped_total.inc();
    }
}

// === impl TailReader ===

impl TailReader {
    pub(super) fn new(
        tail: Arc<Tail>,
        events: mpsc::Receiver<Bytes>,
        recent: Vec<Bytes>,
        live_tail: Arc<LiveTail>,
    ) -> Self {
        Self {
            tail,
            events,
            recent,
            live_tail,
            next_chunk_at: Instant::now(),
        }
    }

    /// Returns whether it still has its place.
    pub(crate) fn is_followed(&self) -> bool {
        self.live_tail.contains(&self.tail)
    }

    /// Returns the next part of the stream: events with a report of dropped ones, or a comment after
    /// [`KEEP_ALIVE_INTERVAL`].
    pub(crate) async fn next_chunk(&mut self) -> Bytes {
        *self.tail.last_read.lock() = Instant::now();
        sleep_until(self.next_chunk_at).await;
        let mut chunk = BytesMut::new();
        for event in std::mem::take(&mut self.recent) {
            chunk.extend_from_slice(&event);
        }
        if chunk.is_empty()
            && let Ok(Some(event)) = timeout(KEEP_ALIVE_INTERVAL, self.events.recv()).await
        {
            chunk.extend_from_slice(&event);
        }
        while let Ok(event) = self.events.try_recv() {
            chunk.extend_from_slice(&event);
        }
        let dropped = self.tail.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let report = format!("event: dropped\ndata: {{\"count\":{dropped}}}\n\n");
            chunk.extend_from_slice(report.as_bytes());
        }
        if chunk.is_empty() {
            return Bytes::from_static(b": keep-alive\n\n");
        }
        self.next_chunk_at = Instant::now() + CHUNK_INTERVAL;
        chunk.freeze()
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        self.live_tail.close(&self.tail);
        tracing::info!("live tail closed");
    }
}
