//! Numbers of a history.

use std::fmt;

use super::checker::{notifications, request};
use super::history::{Event, Record};

/// Numbers of a history.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    faults: usize,
    /// Requests, and those of them that were successful.
    requests: (usize, usize),
    /// Accepted notifications, their deliveries, and those that were delivered more than once.
    accepted: usize,
    deliveries: usize,
    repeated: usize,
    /// Exchanged temporary tokens, and successful refreshes.
    exchanged: usize,
    refreshes: usize,
}

impl Summary {
    /// Returns the numbers of a history.
    pub fn of(history: &[Record]) -> Self {
        let notifications = notifications(history);
        let repeated = notifications.values();
        let repeated = repeated.filter(|one| one.deliveries_ms.len() > 1).count();
        let statuses = history.iter().filter_map(|record| request(&record.event));
        let statuses: Vec<u16> = statuses.map(|(_, status)| status).collect();
        let successes = statuses
            .iter()
            .filter(|status| (200..300).contains(*status));
        let count = |is: fn(&Event) -> bool| {
            let found = history.iter().filter(|record| is(&record.event));
            found.count()
        };
        Self {
            faults: count(|event| matches!(event, Event::Fault { .. })),
            requests: (statuses.len(), successes.count()),
            accepted: notifications.len(),
            deliveries: count(|event| matches!(event, Event::Deliver { .. })),
            repeated,
            exchanged: count(|event| matches!(event, Event::Exchange { status: 200, .. })),
            refreshes: count(|event| matches!(event, Event::Refresh { status: 200, .. })),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            faults,
            requests: (requests, successes),
            accepted,
            deliveries,
            repeated,
            exchanged,
            refreshes,
        } = self;
        write!(
            to,
            "{faults} faults, {requests} requests, {successes} of them successful, {accepted} notifications accepted, \
             {deliveries} deliveries, {repeated} delivered more than once, {exchanged} temporary tokens exchanged, \
             {refreshes} refreshes"
        )
    }
}
