//! The audit log, and its queue to the task that stores audit events, for which no flow waits.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use tokio::sync::mpsc;

use super::{Metrics, Operation};
use crate::client::ClientContext;

/// Maximum number of events that wait to be stored, about 4 MiB. Further ones are dropped.
const QUEUE_CAPACITY: usize = 4096;
/// Maximum number of events without a subject, which anybody can cause, that a process stores per
/// minute. It bounds the growth of the table while an attacker guesses passwords.
const MAX_ANONYMOUS_EVENTS_PER_MINUTE: u32 = 3000;
const MINUTE_MS: i64 = 60_000;

#[derive(Clone, Debug)]
pub(crate) struct AuditEvent {
    /// `None` after the machine has slept: the time of the database at which the event is stored counts.
    pub(crate) at: Option<Timestamp>,
    pub(crate) operation: Operation,
    /// `ok` or the name of an error, as in the audit log.
    pub(crate) outcome: String,
    /// The reason that the response hides.
    pub(crate) reason: Option<&'static str>,
    pub(crate) request_id: Arc<str>,
    /// The pool's subject of the user; empty if unknown.
    pub(crate) subject: String,
    /// The e-mail address of the request. Only its keyed hash is stored.
    pub(crate) email: Option<EmailAddress>,
    /// The client's address. Only its network is stored.
    pub(crate) address: Option<IpAddr>,
}

named! {
    /// The reason for which an event is not stored.
    AuditDropReason {
        /// The database was unavailable or slow for so long that the queue is full.
        QueueFull = "queue_full",
        /// More than [`MAX_ANONYMOUS_EVENTS_PER_MINUTE`].
        RateLimit = "rate_limit",
        Rejected = "rejected",
    }
}

/// Writes audit events and counts operations.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog {
    events: mpsc::Sender<AuditEvent>,
    pub(super) metrics: Metrics,
    clock: Clock,
    anonymous: Arc<Mutex<AnonymousCount>>,
}

/// The number of events without a subject in the current minute.
#[derive(Debug, Default)]
struct AnonymousCount {
    minute: i64,
    events: u32,
}

// === impl AuditLog ===

impl AuditLog {
    /// Creates a log and the receiving end of its queue.
    pub(crate) fn new(metrics: Metrics, clock: Clock) -> (Self, mpsc::Receiver<AuditEvent>) {
        let (events, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let log = Self {
            events,
            metrics,
            clock,
            anonymous: Arc::default(),
        };
        (log, receiver)
    }

    /// Submits an event without waiting. It is dropped and counted if the queue is full, and if
    /// too many events have no subject.
    pub(super) fn submit(
        &self,
        client: &ClientContext,
        operation: Operation,
        subject: &str,
        outcome: &str,
    ) {
        let at = self.clock.now();
        if subject.is_empty() && !self.anonymous.lock().admit(at) {
            self.metrics.count_audit_drop(AuditDropReason::RateLimit, 1);
            return;
        }
        let event = AuditEvent {
            at: Some(at).filter(|_| !self.clock.is_uncertain()),
            operation,
            outcome: outcome.to_owned(),
            reason: client.details.reason.get().copied(),
            request_id: Arc::clone(&client.request_id),
            subject: subject.to_owned(),
            email: client.details.email.get().cloned(),
            address: client.address,
        };
        if self.events.try_send(event).is_err() {
            self.metrics.count_audit_drop(AuditDropReason::QueueFull, 1);
            postern_core::log_consequence!("audit events dropped, queue full");
        }
    }
}

// === impl AnonymousCount ===

impl AnonymousCount {
    fn admit(&mut self, at: Timestamp) -> bool {
        let minute = at.0.div_euclid(MINUTE_MS);
        if self.minute != minute {
            *self = Self { minute, events: 0 };
        }
        self.events = self.events.saturating_add(1);
        self.events <= MAX_ANONYMOUS_EVENTS_PER_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn log() -> (AuditLog, mpsc::Receiver<AuditEvent>, Clock) {
        let clock = Clock::manual(Timestamp(0));
        let metrics = Metrics::new().expect("metrics");
        let (log, receiver) = AuditLog::new(metrics, clock.clone());
        (log, receiver, clock)
    }

    #[tokio::test]
    async fn full_queue_drops_and_counts_without_waiting() {
        let (log, mut receiver, _) = log();
        let client = ClientContext::new("r".into(), None);
        for _ in 0..QUEUE_CAPACITY + 3 {
            log.submit(&client, Operation::SignIn, "subject", "ok");
        }
        let dropped = |reason| log.metrics.audit_drops(reason);
        assert_eq!(dropped(AuditDropReason::QueueFull), 3);
        assert_eq!(receiver.len(), QUEUE_CAPACITY);
        receiver.recv().await.expect("an event");
        log.submit(&client, Operation::SignIn, "subject", "ok");
        assert_eq!(dropped(AuditDropReason::QueueFull), 3);
    }

    #[tokio::test]
    async fn guesses_of_a_flood_are_not_all_stored() {
        let (log, receiver, clock) = log();
        let client = ClientContext::new("r".into(), None);
        let guess = || log.submit(&client, Operation::SignIn, "", "invalid_credentials");
        let limit = usize::try_from(MAX_ANONYMOUS_EVENTS_PER_MINUTE).expect("small");
        for _ in 0..limit + 5 {
            guess();
        }
        assert_eq!(receiver.len(), limit);
        assert_eq!(log.metrics.audit_drops(AuditDropReason::RateLimit), 5);
        log.submit(&client, Operation::SignIn, "subject", "ok");
        clock.advance(Duration::from_secs(60));
        guess();
        assert_eq!(receiver.len(), limit + 2);
    }
}
