//! The audit trail: audit events in the database, so that support finds out later what happened.
//!
//! An e-mail address is stored as a keyed hash and a client address as its network.
//!
//! Sign-ins neither wait for the trail nor fail with it: events are stored in groups by a task of
//! its own, and dropped and counted if the database is unavailable for longer than the queue lasts.

mod reader;
mod search;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;
use postern_core::group_commit::process_until_stopped;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::{NoContext, Uuid};

pub use self::reader::AuditReader;
pub(crate) use self::search::SignInSearch;
use crate::crypto::KeyRing;
use crate::protection::network;
use crate::store::{AuditRow, AuthStore, StoreError};
use crate::telemetry::{AuditDropReason, AuditEvent, AuditLog, Metrics};

/// Maximum number of events in one statement. What arrives during a statement is the next group.
const MAX_GROUP_EVENTS: usize = 256;
/// Delays between attempts while the database is unavailable.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
const RETENTION_INTERVAL: Duration = Duration::from_secs(600);
const DELETION_BATCH_SIZE: i64 = 1000;

#[derive(Debug)]
pub(crate) struct AuditTrail {
    writer: Mutex<Option<AuditWriter>>,
    pub(crate) reader: AuditReader,
    clock: Clock,
    retention: Duration,
}

#[derive(Debug)]
pub(crate) struct AuditWriter {
    events: mpsc::Receiver<AuditEvent>,
    store: AuthStore,
    clock: Clock,
    key_ring: Arc<KeyRing>,
    metrics: Metrics,
}

// === impl AuditTrail ===

impl AuditTrail {
    pub(crate) fn open(
        reader: AuditReader,
        clock: &Clock,
        retention: Duration,
        metrics: &Metrics,
    ) -> (AuditLog, Self) {
        let (log, events) = AuditLog::new(metrics.clone(), clock.clone());
        let writer = AuditWriter {
            events,
            store: reader.store.clone(),
            clock: clock.clone(),
            key_ring: Arc::clone(&reader.key_ring),
            metrics: metrics.clone(),
        };
        let trail = Self {
            reader,
            writer: Mutex::new(Some(writer)),
            clock: clock.clone(),
            retention,
        };
        (log, trail)
    }

    /// Returns the writer at the first call.
    pub(crate) fn take_writer(&self) -> Option<AuditWriter> {
        self.writer.lock().take()
    }

    pub(crate) async fn run_retention(&self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            if let Err(error) = self.delete_old().await {
                postern_core::log_outage!("database", %error, "old audit events not deleted");
            }
            let pause = tokio::time::sleep(RETENTION_INTERVAL);
            shutdown.run_until_cancelled(pause).await;
        }
    }

    /// Deletes all old events by the clock of the database, in batches of [`DELETION_BATCH_SIZE`], and
    /// returns their number.
    pub(crate) async fn delete_old(&self) -> Result<u64, StoreError> {
        let retention = i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX);
        let store = &self.reader.store;
        store.synchronize(&self.clock).await?;
        if !self.clock.is_confirmed() {
            return Ok(0);
        }
        let before = Timestamp(self.clock.now().0.saturating_sub(retention));
        let mut deleted = 0;
        loop {
            let batch = store.delete_audit_rows(before, DELETION_BATCH_SIZE);
            let batch = batch.await?;
            deleted += batch;
            if batch < DELETION_BATCH_SIZE.unsigned_abs() {
                return Ok(deleted);
            }
        }
    }
}

// === impl AuditWriter ===

impl AuditWriter {
    /// Stores events until `stop` is cancelled, and then those that are queued, with one attempt.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut events = std::mem::replace(&mut self.events, mpsc::channel(1).1);
        let store = |group| self.store_group(group, &stop);
        process_until_stopped(&mut events, MAX_GROUP_EVENTS, &stop, store).await;
    }

    /// Stores a group, again and again while the database is unavailable. Drops it if the database
    /// rejects it, or after a failure at shutdown.
    async fn store_group(&self, group: Vec<AuditEvent>, stop: &CancellationToken) {
        // Kept for the next attempt, because the store may have taken them.
        let mut rows = Vec::with_capacity(group.len());
        let mut delays = RETRY_DELAYS.delays();
        loop {
            let storing = async {
                for event in group.iter().skip(rows.len()) {
                    rows.push(self.row(event).await?);
                }
                self.store.insert_audit_rows(&rows).await
            };
            let error = match storing.await {
                Ok(()) => return,
                Err(error) => error,
            };
            postern_core::log_outage!("database", %error, "audit events not stored");
            if !error.is_unavailable() || stop.is_cancelled() {
                let events = u64::try_from(group.len()).unwrap_or(u64::MAX);
                self.metrics
                    .count_audit_drop(AuditDropReason::Rejected, events);
                return;
            }
            delays.wait(stop).await;
        }
    }

    async fn row(&self, event: &AuditEvent) -> Result<AuditRow, StoreError> {
        let at = match event.at {
            Some(at) => at,
            None => self.store.now(&self.clock).await?,
        };
        let email = event.email.as_ref();
        Ok(AuditRow {
            id: new_id(at).to_string(),
            at: at.0,
            operation: event.operation.name().to_owned(),
            outcome: event.outcome.clone(),
            reason: event.reason.map(str::to_owned),
            request_id: event.request_id.to_string(),
            subject: Some(event.subject.clone()).filter(|subject| !subject.is_empty()),
            email_hash: email.map(|email| self.key_ring.email_hash(email.as_str())),
            network: event.address.map(network),
            provider: event.operation.provider().map(str::to_owned),
        })
    }
}

/// Returns a UUIDv7 of an instant, so that the primary key grows at one end.
fn new_id(at: Timestamp) -> Uuid {
    let seconds = u64::try_from(at.unix_seconds()).unwrap_or(0);
    let millis = u32::try_from(at.0.rem_euclid(1000)).unwrap_or(0);
    Uuid::new_v7(uuid::Timestamp::from_unix(
        NoContext,
        seconds,
        millis * 1_000_000,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Operation;
    use crate::testing::Fixture;

    #[tokio::test]
    async fn event_of_an_uncertain_time_gets_that_of_its_storage() {
        let fixture = Fixture::new().await;
        let writer = fixture.service.audit_trail.take_writer();
        let writer = writer.expect("not taken yet");
        let now = fixture.clock.now();
        for (at, expected) in [(None, now), (Some(Timestamp(7)), Timestamp(7))] {
            let event = AuditEvent {
                at,
                operation: Operation::SignIn,
                outcome: "ok".to_owned(),
                reason: None,
                request_id: "r-1".into(),
                subject: String::new(),
                email: None,
                address: None,
            };
            let row = writer.row(&event).await.expect("a row");
            assert_eq!(row.at, expected.0);
        }
    }
}
