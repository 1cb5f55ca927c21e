//! The status document of a notification, derived from its record and history. It is never stored.

use postern_core::clock::Timestamp;
use postern_service::timeline::{TimelineEntry, TimelineSource};
use serde::Serialize;

use crate::dispatch::ChannelFlow;
use crate::notification::{Channel, NotificationId};
use crate::store::row::ReceiptKind;
use crate::store::{
    HistoryEntry, NotificationSnapshot, ReceiptEntry, ResultKind, ResultRow, WaitingRow,
};

/// The status document.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusView {
    notification_id: String,
    pub(crate) status: NotificationStatus,
    channel: &'static str,
    priority: &'static str,
    template: String,
    /// Version of the last attempt that rendered the template; before the first, that of
    /// acceptance.
    template_version: i32,
    created_at: Timestamp,
    updated_at: Timestamp,
    attempts: i32,
    next_attempt_at: Option<Timestamp>,
    wait_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Empty in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<StatusEvent>,
}

/// The status of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum NotificationStatus {
    /// Waiting for its `sendAt`.
    Scheduled,
    /// Waiting for delivery or for a retry.
    Queued,
    /// Accepted by the provider.
    Sent,
    /// Reported as delivered.
    Delivered,
    /// Failed permanently.
    Failed,
    /// Cancelled by the caller.
    Cancelled,
    /// Expired before delivery.
    Expired,
}

/// An entry in the history of a notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StatusEvent {
    r#type: &'static str,
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

// === impl NotificationStatus ===

impl NotificationStatus {
    /// All names with their values, for filters.
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("SCHEDULED", Self::Scheduled),
        ("QUEUED", Self::Queued),
        ("SENT", Self::Sent),
        ("DELIVERED", Self::Delivered),
        ("FAILED", Self::Failed),
        ("CANCELLED", Self::Cancelled),
        ("EXPIRED", Self::Expired),
    ];

    /// Returns the name in responses.
    pub(crate) fn as_str(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, status)| *status == self);
        named.map_or("-", |(name, _)| name)
    }
}

// === impl StatusView ===

impl StatusView {
    /// Derives the document. `flow` returns the restrictions on a channel's queue.
    pub(crate) fn of(
        snapshot: &NotificationSnapshot,
        now: Timestamp,
        flow: impl Fn(Channel) -> ChannelFlow,
    ) -> Self {
        let record = &snapshot.record;
        let builder = StatusBuilder::from_snapshot(snapshot, now);
        let flow = flow(record.lane.channel);
        let (wait_reason, next) = match builder.waiting {
            Some(WaitingRow { since: Some(_), .. }) | None => (None, None),
            Some(WaitingRow { due, .. }) if builder.scheduled => (Some("SCHEDULED"), due),
            Some(WaitingRow { due: Some(due), .. }) => (Some("RETRY"), Some(due)),
            Some(_) => (flow.wait_reason(record.lane.priority), flow.next_probe_at),
        };
        let status = builder.status();
        let waits = [NotificationStatus::Queued, NotificationStatus::Scheduled].contains(&status);
        let updated_at = builder.events.iter().map(|event| event.at).max();
        let reason = builder.reported_reason.or(builder.reason);
        Self {
            notification_id: snapshot.id.to_string(),
            status,
            channel: record.lane.channel.as_str(),
            priority: record.lane.priority.as_str(),
            template: record.template.clone(),
            template_version: builder.template_version.unwrap_or(record.template_version),
            created_at: record.created_at,
            updated_at: updated_at.unwrap_or(record.created_at),
            attempts: builder.attempts,
            next_attempt_at: next.filter(|_| waits),
            wait_reason: wait_reason.filter(|_| waits),
            reason: reason.filter(|_| status == NotificationStatus::Failed),
            events: builder.events,
        }
    }

    /// Returns the events for a time line.
    pub(crate) fn timeline_entries(&self, id: NotificationId) -> Vec<TimelineEntry> {
        let entry = |event: &StatusEvent| {
            let mut entry = TimelineEntry::new(event.at, TimelineSource::Notify, event.r#type)
                .with("notificationId", Some(id.to_string()))
                .with("attempt", event.attempt)
                .with("provider", event.provider.as_deref())
                .with("detail", event.detail.as_deref());
            entry.outcome.clone_from(&event.code);
            entry
        };
        self.events.iter().map(entry).collect()
    }

    /// Returns the document without its events, for lists.
    pub(crate) fn without_events(self) -> Self {
        Self {
            events: Vec::new(),
            ..self
        }
    }
}

/// State collected from a notification's history.
#[derive(Default)]
struct StatusBuilder {
    events: Vec<StatusEvent>,
    /// Events reported by the provider.
    reports: Vec<StatusEvent>,
    attempts: i32,
    template_version: Option<i32>,
    waiting: Option<WaitingRow>,
    /// The last status recorded by this service.
    recorded: Option<NotificationStatus>,
    /// The highest-ranking status reported by the provider.
    reported: Option<ReceiptKind>,
    reason: Option<String>,
    /// Failure reason of the highest-ranking report.
    reported_reason: Option<String>,
    scheduled: bool,
    expired: bool,
}

impl StatusBuilder {
    fn from_snapshot(snapshot: &NotificationSnapshot, now: Timestamp) -> Self {
        let record = &snapshot.record;
        let first = match snapshot.send_at {
            Some(_) => "SCHEDULED",
            None => "QUEUED",
        };
        let mut builder = Self {
            events: vec![StatusEvent::new(first, record.created_at)],
            ..Self::default()
        };
        for entry in &snapshot.history {
            match entry {
                HistoryEntry::Result(result) => builder.add_result(result),
                HistoryEntry::Waiting(waiting) => builder.add_waiting(*waiting, snapshot, now),
                HistoryEntry::Receipt(receipt) => builder.add_receipt(receipt),
            }
        }
        builder.apply_schedule(snapshot, now);
        builder.merge_reports();
        // The sort is stable: an event of this service precedes a report with the same time.
        builder.events.sort_by_key(|event| event.at);
        builder
    }

    fn add_result(&mut self, result: &ResultRow) {
        self.attempts = self.attempts.max(result.attempt);
        self.template_version = result.template_version.or(self.template_version);
        if let Some(began_at) = result.began_at {
            self.events.push(StatusEvent {
                attempt: Some(result.attempt),
                provider: result.provider.clone(),
                ..StatusEvent::new("ATTEMPTED", began_at)
            });
        }
        let (name, recorded) = match result.kind {
            ResultKind::Retrying => ("RETRYING", None),
            ResultKind::Lost => ("OUTCOME_UNKNOWN", None),
            ResultKind::Sent => ("SENT", Some(NotificationStatus::Sent)),
            ResultKind::Failed => ("FAILED", Some(NotificationStatus::Failed)),
            ResultKind::Expired => ("EXPIRED", Some(NotificationStatus::Expired)),
            ResultKind::Cancelled => ("CANCELLED", Some(NotificationStatus::Cancelled)),
            ResultKind::Replayed => ("REPLAYED", None),
        };
        self.recorded = recorded;
        let reason = result.code.as_ref();
        let reason = reason.filter(|_| recorded == Some(NotificationStatus::Failed));
        self.reason = reason.map(|code| code.to_uppercase());
        let attempted = result.began_at.is_some() || result.kind == ResultKind::Lost;
        self.events.push(StatusEvent {
            attempt: attempted.then_some(result.attempt),
            provider: result.provider.clone(),
            code: result.code.clone(),
            detail: result.detail.clone(),
            ..StatusEvent::new(name, result.at)
        });
    }

    fn add_waiting(
        &mut self,
        waiting: WaitingRow,
        snapshot: &NotificationSnapshot,
        now: Timestamp,
    ) {
        self.attempts = self.attempts.max(waiting.attempt);
        self.waiting = Some(waiting);
        self.scheduled =
            waiting.due.is_some() && waiting.due == snapshot.send_at && waiting.attempt == 0;
        // The next claim will find the notification expired.
        self.expired =
            waiting.since.is_none() && snapshot.record.expires_at.is_some_and(|end| end <= now);
        if let Some(since) = waiting.since {
            self.events.push(StatusEvent {
                attempt: Some(waiting.attempt),
                ..StatusEvent::new("ATTEMPTED", since)
            });
        }
    }

    fn add_receipt(&mut self, receipt: &ReceiptEntry) {
        let kind = receipt.kind;
        let name = match kind {
            ReceiptKind::Sent => "ACCEPTED",
            ReceiptKind::Deferred => "DEFERRED",
            ReceiptKind::Delivered => "DELIVERED",
            ReceiptKind::Failed => "FAILED",
            ReceiptKind::Bounced => "BOUNCED",
        };
        if self.reported < Some(kind) {
            self.reported = Some(kind);
            let code = receipt.code.as_deref();
            self.reported_reason = match kind {
                ReceiptKind::Bounced => Some("BOUNCED".to_owned()),
                ReceiptKind::Failed => Some(code.unwrap_or("UNDELIVERED").to_uppercase()),
                ReceiptKind::Sent | ReceiptKind::Deferred | ReceiptKind::Delivered => None,
            };
        }
        self.reports.push(StatusEvent {
            provider: Some(receipt.provider.clone()),
            code: receipt.code.clone(),
            detail: receipt.detail.clone(),
            ..StatusEvent::new(name, receipt.at)
        });
    }

    /// Merges the reports into the events. A report follows from an attempt: one that is earlier,
    /// because the provider's clock is behind, is placed at the first attempt. A time in whole
    /// seconds may lie anywhere within that second, so it is placed after the SENT event of the
    /// same second.
    fn merge_reports(&mut self) {
        let instants = |name: &'static str| {
            let events = self.events.iter().filter(move |event| event.r#type == name);
            events.map(|event| event.at)
        };
        let first = instants("ATTEMPTED").min();
        let first = first.or_else(|| instants("QUEUED").min());
        let sent: Vec<Timestamp> = instants("SENT").collect();
        for mut report in std::mem::take(&mut self.reports) {
            let reported_at = report.at;
            report.at = first.map_or(reported_at, |first| reported_at.max(first));
            if reported_at.0.rem_euclid(1000) == 0 {
                let second = reported_at.0..reported_at.0 + 1000;
                let same_second = sent.iter().filter(|sent| second.contains(&sent.0));
                report.at = same_second.copied().fold(report.at, Timestamp::max);
            }
            self.events.push(report);
        }
    }

    /// Inserts QUEUED at the scheduled time, unless the notification was cancelled before it.
    fn apply_schedule(&mut self, snapshot: &NotificationSnapshot, now: Timestamp) {
        let cancelled_before =
            self.recorded == Some(NotificationStatus::Cancelled) && self.attempts == 0;
        if let Some(send_at) = snapshot.send_at.filter(|at| *at <= now)
            && !(cancelled_before || self.scheduled)
        {
            self.events.insert(1, StatusEvent::new("QUEUED", send_at));
        }
    }

    /// Merges the recorded and the reported status by rank, so that order and repetition of reports
    /// do not matter. BOUNCED outranks all others, because it may follow DELIVERED.
    fn status(&self) -> NotificationStatus {
        match self.reported {
            Some(ReceiptKind::Bounced | ReceiptKind::Failed) => return NotificationStatus::Failed,
            Some(ReceiptKind::Delivered) => return NotificationStatus::Delivered,
            Some(ReceiptKind::Sent | ReceiptKind::Deferred) if self.recorded.is_none() => {
                return NotificationStatus::Sent;
            }
            Some(ReceiptKind::Sent | ReceiptKind::Deferred) | None => {}
        }
        match self.recorded {
            Some(recorded) => recorded,
            None if self.expired => NotificationStatus::Expired,
            None if self.scheduled => NotificationStatus::Scheduled,
            None => NotificationStatus::Queued,
        }
    }
}

impl StatusEvent {
    fn new(r#type: &'static str, at: Timestamp) -> Self {
        Self {
            r#type,
            at,
            attempt: None,
            provider: None,
            code: None,
            detail: None,
        }
    }
}

#[cfg(test)]
mod tests;
