//! The events of an access log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_service::timeline::{TimelineEntry, TimelineQuery, TimelineSelector, TimelineSource};
use serde_json::Value;

/// Fields of an access event that a time line repeats, and their names there.
const FIELDS: [(&str, &str); 10] = [
    ("request_id", "requestId"),
    ("route", "route"),
    ("status", "status"),
    ("subject", "subject"),
    ("caller_service", "service"),
    ("upstream", "upstream"),
    ("upstream_address", "upstreamAddress"),
    ("attempts", "attempts"),
    ("cause", "cause"),
    ("duration_ms", "durationMs"),
];

/// A selection of access events.
#[derive(Clone, Debug)]
pub(super) struct AccessLogFilter {
    pub(super) request_ids: BTreeSet<String>,
    pub(super) subjects: BTreeSet<String>,
    /// A notification whose status was requested.
    notification: Option<String>,
    since: Timestamp,
    until: Timestamp,
}

impl AccessLogFilter {
    pub(super) fn of(query: &TimelineQuery) -> Self {
        let mut filter = Self {
            request_ids: BTreeSet::new(),
            subjects: BTreeSet::new(),
            notification: None,
            since: query.since,
            until: query.until,
        };
        match &query.selector {
            TimelineSelector::User(subject) => {
                filter.subjects.insert(subject.clone());
            }
            TimelineSelector::Request(id) => {
                filter.request_ids.insert(id.clone());
            }
            TimelineSelector::Notification(id) => filter.notification = Some(id.clone()),
            TimelineSelector::Email(_) | TimelineSelector::All => {}
        }
        filter
    }

    fn accepts(&self, event: &Value, at: Timestamp) -> bool {
        let field = |name: &str| event[name].as_str();
        let is_selected = field("request_id").is_some_and(|id| self.request_ids.contains(id))
            || field("subject").is_some_and(|subject| self.subjects.contains(subject))
            || self.notification.as_deref().is_some_and(|id| {
                field("path").is_some_and(|path| path.split('/').any(|segment| segment == id))
            });
        is_selected && (self.since..self.until).contains(&at)
    }
}

/// Reads the selected events. Lines that are not access events are left out.
pub(super) fn read_access_log(
    path: &Path,
    filter: &AccessLogFilter,
) -> Result<Vec<TimelineEntry>, Exit> {
    let failed = |error| Exit::unavailable(format!("{}: {error}", path.display()));
    let (mut entries, mut line) = (Vec::new(), Vec::new());
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    loop {
        line.clear();
        if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(entries);
        }
        entries.extend(entry(&line, filter));
    }
}

fn entry(line: &[u8], filter: &AccessLogFilter) -> Option<TimelineEntry> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let at = Timestamp::parse(event["timestamp"].as_str()?)?;
    if !filter.accepts(&event, at) {
        return None;
    }
    let text = |name: &str| event[name].as_str().unwrap_or("-");
    let target = format!("{} {}", text("method"), text("path"));
    let mut entry = TimelineEntry::new(at, TimelineSource::Gateway, target);
    entry.outcome = event["code"].as_str().map(str::to_owned);
    for (field, name) in FIELDS {
        entry = entry.with(name, event.get(field).cloned());
    }
    Some(entry)
}
