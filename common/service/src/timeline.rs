//! The time line of a person, a request or a notification: events of several services in one order.
//!
//! Each service reads its own part from its own store; the command `postern timeline` and a web
//! console merge the parts. [`route`] serves the part of a service on its admin listener.
//!
//! Input: a [`TimelineQuery`] from a command line or a query string. Output: a [`Timeline`] as text
//! or JSON.

mod arguments;

use std::collections::BTreeMap;
use std::fmt;

use ::http::StatusCode;
use axum::Router;
use axum::extract::RawQuery;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use serde_json::Value;

use crate::http::{Query, json};
use postern_core::clock::{Clock, Timestamp};
use postern_core::decode::parse_duration;
use postern_core::email::EmailAddress;
use postern_core::problem::Problem;

pub use self::arguments::TimelineArguments;

/// Maximum number of events that a query returns.
pub const MAX_ENTRIES: usize = 1000;
/// Number of events that a query returns by default.
pub const DEFAULT_ENTRIES: usize = 200;
/// Maximum bytes of an identifier in a query.
const MAX_ID_BYTES: usize = 255;

/// The origin of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TimelineSource {
    /// The access log of the gateway.
    Gateway,
    /// The audit trail of the authentication service.
    Auth,
    /// The history of the notification service.
    Notify,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineEntry {
    /// The time of the event.
    pub at: Timestamp,
    /// Its origin.
    pub source: TimelineSource,
    /// Its name, such as `sign_in` or `SENT`.
    pub event: String,
    /// `ok`, or the code of an error; `None` for events that have no outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Further members, in `camelCase`.
    #[serde(flatten)]
    pub members: BTreeMap<&'static str, Value>,
}

/// The subject of a time line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineSelector {
    /// A person, by e-mail address.
    Email(EmailAddress),
    /// A person, by the pool's subject.
    User(String),
    /// A request, by its id.
    Request(String),
    /// A notification, by its id.
    Notification(String),
    /// Everything.
    All,
}

/// A query of the newest events of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineQuery {
    /// The subject.
    pub selector: TimelineSelector,
    /// Events at or after this time.
    pub since: Timestamp,
    /// Events before this time.
    pub until: Timestamp,
    /// Maximum number of events.
    pub limit: usize,
}

/// Events in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The events, oldest first.
    pub entries: Vec<TimelineEntry>,
    /// The subjects of the person, as far as the service knows them; other services find the person
    /// by them.
    pub subjects: Vec<String>,
    /// Whether older events were left out because of the limit.
    pub is_truncated: bool,
}

// === impl TimelineSource ===

impl TimelineSource {
    /// Returns the name in JSON and text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Auth => "auth",
            Self::Notify => "notify",
        }
    }
}

// === impl TimelineEntry ===

impl TimelineEntry {
    /// Creates an event without members.
    #[must_use]
    pub fn new(at: Timestamp, source: TimelineSource, event: impl Into<String>) -> Self {
        Self {
            at,
            source,
            event: event.into(),
            outcome: None,
            members: BTreeMap::new(),
        }
    }

    /// Adds a member, unless it is `None`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            self.members.insert(name, value.into());
        }
        self
    }
}

/// Formats the event on one line: time, source, event, outcome, `name=value` of each member.
impl fmt::Display for TimelineEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.as_deref().unwrap_or("-");
        write!(f, "{} {:<7} {}", self.at, self.source.as_str(), self.event)?;
        write!(f, " {}", printable(outcome))?;
        for (name, value) in &self.members {
            match value.as_str() {
                Some(text) if is_word(text) => write!(f, " {name}={text}")?,
                Some(text) => write!(f, " {name}=\"{}\"", printable(text))?,
                None => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// Escapes control characters, which a terminal would execute, and quotation marks.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => printable.push_str("\\\""),
            _ if character.is_control() => printable.extend(character.escape_default()),
            _ => printable.push(character),
        }
    }
    printable
}

// === impl TimelineQuery ===

impl TimelineQuery {
    /// Creates a query of all times.
    #[must_use]
    pub fn new(selector: TimelineSelector, limit: usize) -> Self {
        Self {
            selector,
            since: Timestamp(0),
            until: Timestamp(i64::MAX),
            limit,
        }
    }

    /// Decodes a query string: one of `email`, `user`, `request` and `notification`; optional
    /// `since`, `until` (RFC 3339, or a duration before now such as `24h`) and `limit`.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, Problem> {
        const SELECTORS: [&str; 4] = ["email", "user", "request", "notification"];
        let known = [&SELECTORS[..], &["since", "until", "limit"]].concat();
        let mut query = Query::parse(text, &known);
        let named = SELECTORS.iter().filter(|name| query.get(name).is_some());
        if named.count() != 1 {
            let detail = "exactly one of email, user, request and notification is required";
            query.fail("email", "missing_field", detail);
        }
        let read = Self::read(&mut query, now);
        query.finish()?;
        Ok(read)
    }

    fn read(query: &mut Query, now: Timestamp) -> Self {
        let email = query.read("email", "must be an e-mail address", EmailAddress::parse);
        let mut id = |name| query.read(name, "must be an identifier", parse_id);
        let (user, request, notification) = (id("user"), id("request"), id("notification"));
        let selector = email
            .map(TimelineSelector::Email)
            .or(user.map(TimelineSelector::User))
            .or(request.map(TimelineSelector::Request))
            .or(notification.map(TimelineSelector::Notification))
            .unwrap_or(TimelineSelector::All);
        let expected = "must be an RFC 3339 time, or a duration such as 24h";
        let mut instant = |name| query.read(name, expected, |text| parse_instant(text, now));
        let (since, until) = (instant("since"), instant("until"));
        let limit = query.read("limit", "must be 1 to 1000", |text| {
            let limit: usize = text.parse().ok()?;
            (1..=MAX_ENTRIES).contains(&limit).then_some(limit)
        });
        let mut read = Self::new(selector, limit.unwrap_or(DEFAULT_ENTRIES));
        read.since = since.unwrap_or(read.since);
        read.until = until.unwrap_or(read.until);
        read
    }
}

/// Parses an identifier: 1 to 255 visible ASCII characters.
#[must_use]
pub fn parse_id(text: &str) -> Option<String> {
    let is_id = (1..=MAX_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_id.then(|| text.to_owned())
}

/// Parses an RFC 3339 time, or a duration before `now` such as `24h`.
#[must_use]
pub fn parse_instant(text: &str, now: Timestamp) -> Option<Timestamp> {
    Timestamp::parse(text).or_else(|| {
        let before = i64::try_from(parse_duration(text)?.as_millis()).ok()?;
        Some(Timestamp(now.0.saturating_sub(before)))
    })
}

// === impl Timeline ===

impl Timeline {
    /// Creates a time line of the newest `limit` events.
    #[must_use]
    pub fn of(mut entries: Vec<TimelineEntry>, limit: usize) -> Self {
        // The sort is stable: events of one store keep their order.
        entries.sort_by_key(|entry| (entry.at, entry.source));
        let excess = entries.len().saturating_sub(limit);
        entries.drain(..excess);
        Self {
            entries,
            subjects: Vec::new(),
            is_truncated: excess > 0,
        }
    }
}

/// Returns the route `GET /admin/timeline`, to be protected by
/// [`admin_api::protect`](crate::admin_api::protect), because the time line is personal data.
pub fn route<F, R>(clock: Clock, read: F) -> Router
where
    F: Fn(TimelineQuery) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Timeline, Problem>> + Send,
{
    let handler = move |RawQuery(query): RawQuery| {
        let (read, clock) = (read.clone(), clock.clone());
        async move {
            let query = TimelineQuery::parse(query.as_deref().unwrap_or_default(), clock.now())?;
            let timeline = read(query).await?;
            Ok::<Response, Problem>(json(StatusCode::OK, &timeline))
        }
    };
    Router::new().route("/admin/timeline", get(handler))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_core::problem::Code;

    fn entry(at: i64, source: TimelineSource) -> TimelineEntry {
        TimelineEntry::new(Timestamp(at), source, "x")
    }

    #[test]
    fn newest_events_are_kept_in_the_order_of_time() {
        use TimelineSource::{Auth, Gateway, Notify};
        let entries = [(3, Notify), (1, Auth), (3, Gateway), (2, Auth)];
        let entries = entries.map(|(at, source)| entry(at, source));
        let timeline = Timeline::of(entries.into(), 3);
        let found = timeline
            .entries
            .iter()
            .map(|entry| (entry.at.0, entry.source));
        assert!(found.eq([(2, Auth), (3, Gateway), (3, Notify)]));
        assert!(timeline.is_truncated);
    }

    #[test]
    fn control_characters_of_providers_are_escaped() {
        let entry = entry(0, TimelineSource::Notify)
            .with("detail", Some("550 \u{1b}[2Jno \"such\" user"))
            .with("attempt", Some(1))
            .with("code", None::<&str>);
        let expected = "1970-01-01T00:00:00.000Z notify  x - attempt=1 \
            detail=\"550 \\u{1b}[2Jno \\\"such\\\" user\"";
        assert_eq!(entry.to_string(), expected);
    }

    #[test]
    fn query_names_exactly_one_subject() {
        let now = Timestamp(86_400_000);
        let query = TimelineQuery::parse("user=s-1&since=1h&limit=5", now).expect("a query");
        assert_eq!(query.selector, TimelineSelector::User("s-1".to_owned()));
        assert_eq!((query.since, query.limit), (Timestamp(82_800_000), 5));
        for wrong in [
            "",
            "user=a&email=ada@example.com",
            "user=a&user=b",
            "user=%00",
            "user=",
            "email=%25",
            "user=a&limit=0",
            "user=a&limit=1001",
            "user=a&since=yesterday",
            "user=a&subject=b",
        ] {
            let problem = TimelineQuery::parse(wrong, now).expect_err(wrong);
            assert_eq!(problem.code(), Code::InvalidRequest, "{wrong}");
        }
    }
}
