//! The newest events, with which a reader begins.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::Value;

use super::{AccessEvent, TailFilter};

/// Maximum number of events.
pub(super) const MAX_EVENTS: usize = 1000;
/// Maximum bytes of the events.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The newest events, as server-sent events.
#[derive(Debug, Default)]
pub(super) struct EventHistory {
    events: VecDeque<Bytes>,
    bytes: usize,
}

// === impl EventHistory ===

impl EventHistory {
    /// Adds an event, for which the oldest are forgotten.
    pub(super) fn push(&mut self, event: Bytes) {
        self.bytes += event.len();
        self.events.push_back(event);
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }

    /// Returns the events that a filter selects, the oldest first.
    pub(super) fn select(&self, filter: &TailFilter) -> Vec<Bytes> {
        let selects = |event: &&Bytes| {
            let data = event.strip_prefix(super::EVENT_PREFIX).unwrap_or_default();
            let value: Value = serde_json::from_slice(data).unwrap_or_default();
            filter.selects(&access_event(&value))
        };
        self.events.iter().filter(selects).cloned().collect()
    }
}

/// Returns what filters compare of an event.
fn access_event(value: &Value) -> AccessEvent<'_> {
    let text = |name: &str| value[name].as_str();
    AccessEvent {
        request_id: text("request_id").unwrap_or_default(),
        path: text("path"),
        route: text("route"),
        status: value["status"]
            .as_u64()
            .and_then(|status| status.try_into().ok())
            .unwrap_or(0),
        code: text("code").unwrap_or_default(),
        kind: text("kind"),
        subject: text("subject"),
        caller_service: text("caller_service"),
        client: text("client").and_then(|client| client.parse().ok()),
        ..AccessEvent::default()
    }
}
