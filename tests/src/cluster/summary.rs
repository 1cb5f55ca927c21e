//! Numbers of a history.

use super::checker::{notifications, request};
use super::history::{Event, Record};

/// Numbers of a history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Requests, and those of them that were successful.
    pub requests: (usize, usize),
    /// Accepted notifications.
    pub accepted: usize,
    /// Deliveries.
    pub deliveries: usize,
    /// Notifications that were delivered more than once.
    pub repeated: usize,
    /// Exchanged temporary tokens.
    pub exchanged: usize,
    /// Successful refreshes.
    pub refreshes: usize,
    /// Faults.
    pub faults: usize,
}

/// Returns the numbers of a history.
#[must_use]
pub fn of(history: &[Record]) -> Summary {
    let notifications = notifications(history);
    let mut summary = Summary {
        accepted: notifications.len(),
        repeated: notifications
            .values()
            .filter(|one| one.deliveries_ms.len() > 1)
            .count(),
        ..Summary::default()
    };
    for record in history {
        if let Some((_, status)) = request(&record.event) {
            summary.requests.0 += 1;
            summary.requests.1 += usize::from((200..300).contains(&status));
        }
        match &record.event {
            Event::Deliver { .. } => summary.deliveries += 1,
            Event::Exchange { status: 200, .. } => summary.exchanged += 1,
            Event::Refresh { status: 200, .. } => summary.refreshes += 1,
            Event::Fault { .. } => summary.faults += 1,
            Event::Exchange { .. }
            | Event::Refresh { .. }
            | Event::Submit { .. }
            | Event::FinalStatus { .. }
            | Event::Read { .. }
            | Event::Exit { .. }
            | Event::Quiet => {}
        }
    }
    summary
}
