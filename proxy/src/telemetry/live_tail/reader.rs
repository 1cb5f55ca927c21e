//! A reader, and the stream that it becomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::{Instant, sleep_until};

use super::{LiveTailMetrics, TailFilter};

/// Minimum time between two chunks, so that a reader of many requests costs few wake-ups.
const CHUNK_INTERVAL: Duration = Duration::from_millis(20);
/// Time without an event after which a comment is sent, so that neither side takes the connection
/// for dead.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct TailReader {
    filter: TailFilter,
    events: Receiver<Bytes>,
    /// The next part of the stream.
    chunk: BytesMut,
    /// The time of the last part.
    sent_at: Instant,
    next_chunk_at: Instant,
    /// Events above the maximum rate, and how many of them were reported.
    skipped: Arc<AtomicU64>,
    reported: u64,
    metrics: LiveTailMetrics,
    _place: OwnedSemaphorePermit,
}

impl TailReader {
    pub(super) fn new(
        filter: TailFilter,
        events: Receiver<Bytes>,
        skipped: Arc<AtomicU64>,
        metrics: LiveTailMetrics,
        place: OwnedSemaphorePermit,
    ) -> Self {
        metrics.tails.inc();
        Self {
            filter,
            events,
            chunk: BytesMut::new(),
            sent_at: Instant::now(),
            next_chunk_at: Instant::now(),
            reported: skipped.load(Ordering::Relaxed),
            skipped,
            metrics,
            _place: place,
        }
    }

    /// Lets the stream begin with these events.
    pub(super) fn beginning_with<'e>(
        mut self,
        events: impl IntoIterator<Item = &'e Bytes>,
    ) -> Self {
        for event in events {
            self.add(event);
        }
        self
    }

    /// Returns the next part of the stream: events with a report of dropped ones, or a comment after
    /// [`KEEP_ALIVE_INTERVAL`].
    pub(crate) async fn next_chunk(&mut self) -> Bytes {
        loop {
            sleep_until(self.next_chunk_at).await;
            self.next_chunk_at = Instant::now() + CHUNK_INTERVAL;
            self.receive();
            if !self.chunk.is_empty() {
                break;
            }
            if self.sent_at.elapsed() >= KEEP_ALIVE_INTERVAL {
                self.chunk.extend_from_slice(b": keep-alive\n\n");
                break;
            }
        }
        self.sent_at = Instant::now();
        self.chunk.split().freeze()
    }

    /// Adds the events that have been sent since the last part.
    fn receive(&mut self) {
        let skipped = self.skipped.load(Ordering::Relaxed);
        let mut dropped = skipped - std::mem::replace(&mut self.reported, skipped);
        loop {
            match self.events.try_recv() {
                Ok(event) => self.add(&event),
                Err(TryRecvError::Lagged(count)) => {
                    self.metrics.dropped.inc_by(count);
                    dropped += count;
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if dropped > 0 {
            let report = format!("event: dropped\ndata: {{\"count\":{dropped}}}\n\n");
            self.chunk.extend_from_slice(report.as_bytes());
        }
    }

    fn add(&mut self, event: &Bytes) {
        if self.filter.selects(event) {
            self.chunk.extend_from_slice(event);
        }
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        self.metrics.tails.dec();
        tracing::info!("live tail closed");
    }
}
