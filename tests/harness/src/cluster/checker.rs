//! The guarantees that every history must satisfy. The checker has no part in common with the product.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::history::{Affected, Event, Record};
use super::violation::{Kind, Violation};

/// Concurrent deliveries of all replicas: notifications of this number may be called before an older
/// one of the same priority, because claimed notifications are called in any order.
pub const CONCURRENT_DELIVERIES: usize = 3 * 16;

/// Time after a fault in which its consequences are seen: a killed process's notifications are taken
/// over after 15 s, and a retry takes place within 30 s.
const AFTERMATH_MS: u64 = 45_000;

/// Time after a fault in which claimed notifications wait for another process, and are overtaken.
const TAKEOVER_MS: u64 = 20_000;

/// Calls of a provider for one notification that a fault can add.
const CALLS_PER_FAULT: usize = 2;

/// Grace period of the local pool, in which a refresh token can be used again.
const GRACE_MS: u64 = 30_000;

/// Time without faults before the end in which every kind of request must have succeeded.
const RECOVERY_MS: u64 = 10_000;

struct Fault {
    start_ms: u64,
    end_ms: u64,
    affects: Affected,
    /// Whether the process could finish what it had begun.
    is_graceful: bool,
}

#[derive(Default)]
pub(super) struct Notification {
    submitted_ms: u64,
    accepted_ms: u64,
    priority: String,
    state: Option<String>,
    pub(super) deliveries_ms: Vec<u64>,
}

/// Returns the violations of a history.
pub fn check(history: &[Record]) -> Vec<Violation> {
    let faults = faults(history);
    let notifications = notifications(history);
    let mut found = Vec::new();
    let mut report = |kind, detail| found.push(Violation { kind, detail });
    lost(&notifications, &mut report);
    repeated(&notifications, &faults, &mut report);
    disordered(&notifications, &faults, &mut report);
    keys(history, &mut report);
    unaccounted(history, &notifications, &mut report);
    exchanges(history, &mut report);
    refreshes(history, &mut report);
    reads(history, &mut report);
    recovered(history, &faults, &mut report);
    found.sort();
    found
}

/// Returns the kind of a request and the status of its response.
pub(super) fn request(event: &Event) -> Option<(&str, u16)> {
    match event {
        Event::Submit { status, .. } => Some(("POST /notifications", *status)),
        Event::Exchange { status, .. } => Some(("POST /auth/tokens/exchange", *status)),
        Event::Refresh { status, .. } => Some(("POST /auth/tokens/refresh", *status)),
        Event::Read {
            request, status, ..
        } => Some((request, *status)),
        Event::Deliver { .. }
        | Event::FinalStatus { .. }
        | Event::Fault { .. }
        | Event::Exit { .. }
        | Event::Quiet => None,
    }
}

fn faults(history: &[Record]) -> Vec<Fault> {
    let fault = |record: &Record| {
        let Event::Fault { fault, affects } = &record.event else {
            return None;
        };
        Some(Fault {
            start_ms: record.start_ms,
            end_ms: record.end_ms,
            affects: *affects,
            is_graceful: fault.starts_with("restart "),
        })
    };
    history.iter().filter_map(fault).collect()
}

/// Returns the accepted notifications by id.
pub(super) fn notifications(history: &[Record]) -> BTreeMap<String, Notification> {
    let mut all = BTreeMap::<String, Notification>::new();
    for record in history {
        if let Event::Submit {
            id: Some(id),
            priority,
            status: 201,
            ..
        } = &record.event
        {
            let one = all.entry(id.clone()).or_default();
            if one.priority.is_empty() {
                one.submitted_ms = record.start_ms;
                one.accepted_ms = record.end_ms;
                one.priority.clone_from(priority);
            }
        }
    }
    for record in history {
        if let Event::Deliver { id } = &record.event
            && let Some(one) = all.get_mut(id)
        {
            one.deliveries_ms.push(record.start_ms);
        }
        if let Event::FinalStatus { id, state } = &record.event
            && let Some(one) = all.get_mut(id)
        {
            one.state = Some(state.clone());
        }
    }
    all
}

fn lost(notifications: &BTreeMap<String, Notification>, report: &mut impl FnMut(Kind, String)) {
    for (id, one) in notifications {
        let state = one.state.as_deref().unwrap_or("unknown");
        if one.deliveries_ms.is_empty() || !matches!(state, "SENT" | "DELIVERED") {
            let (priority, deliveries) = (&one.priority, one.deliveries_ms.len());
            let detail = format!(
                "accepted notification {id} was lost: {priority} accepted at {} ms, {deliveries} deliveries, status {state}",
                one.accepted_ms
            );
            report(Kind::Lost, detail);
        }
    }
}

/// Faults can lead to repeated deliveries: the result of a call is lost with the process, or with the
/// connection to the database. A process that is asked to stop completes its calls.
fn repeated(
    notifications: &BTreeMap<String, Notification>,
    faults: &[Fault],
    report: &mut impl FnMut(Kind, String),
) {
    for (id, one) in notifications {
        let Some(last) = one.deliveries_ms.iter().max() else {
            continue;
        };
        let overlaps = |fault: &&Fault| {
            matches!(fault.affects, Affected::Notify | Affected::Database)
                && !fault.is_graceful
                && fault.start_ms <= *last
                && fault.end_ms + AFTERMATH_MS >= one.submitted_ms
        };
        let explaining = faults.iter().filter(overlaps).count();
        let deliveries = one.deliveries_ms.len();
        if deliveries > 1 + CALLS_PER_FAULT * explaining {
            let detail = format!(
                "notification {id} was delivered {deliveries} times, with {explaining} faults"
            );
            report(Kind::TooManyDeliveries, detail);
        }
    }
}

/// Within a priority, notifications are delivered in the order of acceptance, except for those that are
/// claimed at the same time, and those that a fault has interrupted.
fn disordered(
    notifications: &BTreeMap<String, Notification>,
    faults: &[Fault],
    report: &mut impl FnMut(Kind, String),
) {
    let disturbs = |one: &Notification, first: u64| {
        faults.iter().any(|fault| {
            matches!(
                fault.affects,
                Affected::Notify | Affected::Database | Affected::Cache
            ) && fault.start_ms <= first
                && fault.end_ms + TAKEOVER_MS >= one.submitted_ms
        })
    };
    let mut by_priority = HashMap::<&str, BTreeMap<u64, Vec<u64>>>::new();
    for one in notifications.values() {
        if let Some(first) = one.deliveries_ms.iter().min() {
            let submitted = by_priority.entry(&one.priority).or_default();
            submitted.entry(one.submitted_ms).or_default().push(*first);
        }
    }
    for (id, one) in notifications {
        let Some(&first) = one.deliveries_ms.iter().min() else {
            continue;
        };
        if disturbs(one, first) || first <= one.accepted_ms {
            continue;
        }
        // Only what was submitted after this one was accepted, and before it was delivered, can overtake.
        let later = by_priority[one.priority.as_str()].range(one.accepted_ms + 1..=first);
        let overtaken_by = later
            .flat_map(|(_, delivered)| delivered)
            .filter(|at| **at < first)
            .count();
        if overtaken_by > CONCURRENT_DELIVERIES {
            let detail =
                format!("notification {id} was overtaken by {overtaken_by} of its priority");
            report(Kind::OutOfOrder, detail);
        }
    }
}

fn keys(history: &[Record], report: &mut impl FnMut(Kind, String)) {
    let mut ids = BTreeMap::<&str, BTreeSet<&str>>::new();
    for record in history {
        if let Event::Submit {
            key, id: Some(id), ..
        } = &record.event
        {
            ids.entry(key).or_default().insert(id);
        }
    }
    for (key, _) in ids.iter().filter(|(_, ids)| ids.len() > 1) {
        report(
            Kind::KeyAcceptedTwice,
            format!("key {key} has two notifications"),
        );
    }
}

/// If a response is lost, the notification of a key is known to the client only after a repetition. A
/// notification that no response has named therefore belongs to a key that was never answered.
fn unaccounted(
    history: &[Record],
    notifications: &BTreeMap<String, Notification>,
    report: &mut impl FnMut(Kind, String),
) {
    let mut answered = BTreeMap::<&str, bool>::new();
    let mut unknown = BTreeSet::new();
    for record in history {
        if let Event::Submit { key, status, .. } = &record.event {
            *answered.entry(key).or_default() |= *status == 201;
        }
        if let Event::Deliver { id } = &record.event
            && !notifications.contains_key(id)
        {
            unknown.insert(id);
        }
    }
    let unanswered = answered.values().filter(|answered| !**answered).count();
    let delivered = unknown.len();
    if delivered > unanswered {
        let detail = format!(
            "{delivered} notifications were delivered that no response has named, for {unanswered} unanswered keys"
        );
        report(Kind::Unaccounted, detail);
    }
}

fn exchanges(history: &[Record], report: &mut impl FnMut(Kind, String)) {
    let mut exchanged = BTreeMap::<&str, usize>::new();
    for record in history {
        if let Event::Exchange { token, status: 200 } = &record.event {
            *exchanged.entry(token).or_default() += 1;
        }
    }
    for (token, _) in exchanged.iter().filter(|(_, count)| **count > 1) {
        let detail = format!("temporary token {token} was exchanged twice");
        report(Kind::TokenExchangedTwice, detail);
    }
}

/// A refresh token is rejected only if it was sent earlier than the grace period before: the pool may
/// have rotated it, and the response may have been lost.
fn refreshes(history: &[Record], report: &mut impl FnMut(Kind, String)) {
    let mut first_sent_ms = HashMap::<&str, u64>::new();
    for record in history {
        if let Event::Refresh { token, .. } = &record.event {
            let first = first_sent_ms.entry(token).or_insert(record.start_ms);
            *first = (*first).min(record.start_ms);
        }
    }
    let mut rejected = BTreeSet::new();
    for record in history {
        if let Event::Refresh {
            sign_in,
            token,
            status: 401,
        } = &record.event
            && record.end_ms < first_sent_ms[token.as_str()] + GRACE_MS
        {
            rejected.insert(*sign_in);
        }
    }
    for sign_in in rejected {
        let detail = format!("a new refresh token of sign-in {sign_in} was rejected");
        report(Kind::RefreshRejected, detail);
    }
}

fn reads(history: &[Record], report: &mut impl FnMut(Kind, String)) {
    for record in history {
        if let Event::Read {
            request,
            expected,
            answered: Some(answered),
            status: 200..300,
        } = &record.event
            && answered != expected
        {
            let detail = format!(
                "{request} was answered for another: {answered} instead of {expected} at {} ms",
                record.end_ms
            );
            report(Kind::WrongResponse, detail);
        }
        if let Event::Exit { process, status } = &record.event
            && *status != Some(0)
        {
            report(Kind::UncleanExit, format!("{process} did not stop cleanly"));
        }
    }
}

/// Every kind of request succeeds in the time without faults at the end.
fn recovered(history: &[Record], faults: &[Fault], report: &mut impl FnMut(Kind, String)) {
    let quiet = history
        .iter()
        .find(|record| matches!(record.event, Event::Quiet));
    let Some(quiet) = quiet else {
        return report(Kind::TooLittle, nothing("the run did not end"));
    };
    let healed = faults.iter().map(|fault| fault.end_ms).max().unwrap_or(0);
    if quiet.start_ms < healed + RECOVERY_MS {
        let reason = format!("less than {RECOVERY_MS} ms without a fault at the end");
        report(Kind::TooLittle, nothing(&reason));
    }
    let mut succeeded = BTreeMap::<&str, (bool, bool)>::new();
    for record in history {
        if let Some((kind, status)) = request(&record.event) {
            let success = (200..300).contains(&status);
            let found = succeeded.entry(kind).or_default();
            found.0 |= success;
            found.1 |= success && record.start_ms + RECOVERY_MS >= quiet.start_ms;
        }
    }
    for (kind, found) in succeeded {
        match found {
            (false, _) => report(Kind::TooLittle, nothing(&format!("no successful {kind}"))),
            (true, false) => report(
                Kind::NotRecovered,
                format!("{kind} does not succeed after the last fault"),
            ),
            (true, true) => {}
        }
    }
}

fn nothing(reason: &str) -> String {
    format!("nothing is proven: {reason}")
}
