//! The time line of a person, a request or a notification: events of several services in one order.
//!
//! Each service reads its own part from its own store; the command `postern timeline` and a web
//! console merge the parts. [`route`] serves the part of a service on its admin listener.
//!
//! Input: a [`TimelineQuery`] from a command line or a query string. Output: a [`Timeline`] as text
//! or JSON. Depends on `config`, `decode`, `exit`,
//! `http` and `problem`.

mod arguments;

use std::collections::BTreeMap;
use std::fmt;

use ::http::{HeaderMap, StatusCode};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::Router;
use axum::extract::RawQuery;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::clock::{Clock, Timestamp};
use crate::config::Env;
use crate::decode::{Object, parse_duration};
use crate::email::EmailAddress;
use crate::http::{Query, bearer, json, no_store};
use crate::problem::{Code, Problem};
use crate::secret::Secret;

pub use self::arguments::TimelineArguments;

/// Maximum number of events that a query returns.
pub const MAX_ENTRIES: usize = 1000;
/// Number of events that a query returns by default.
pub const DEFAULT_ENTRIES: usize = 200;
/// Maximum bytes of an identifier in a query.
const MAX_ID_BYTES: usize = 255;
/// Minimum bytes of the secret that protects the route.
const MIN_TOKEN_BYTES: usize = 32;

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
            match value {
                Value::String(text) if is_word(text) => write!(f, " {name}={text}")?,
                Value::String(text) => write!(f, " {name}=\"{}\"", printable(text))?,
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_) => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|character| character.is_ascii_graphic() && character != '"')
}

/// Escapes control characters, which a terminal would execute, and quotation marks.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let is_plain = !character.is_control() && character != '"';
            let escaped = (!is_plain).then(|| character.escape_default());
            escaped
                .into_iter()
                .flatten()
                .chain(is_plain.then_some(character))
        })
        .collect()
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
    ///
    /// # Errors
    /// 400 `invalid_request` with every mistake.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, Problem> {
        const KNOWN: [&str; 7] = [
            "email",
            "user",
            "request",
            "notification",
            "since",
            "until",
            "limit",
        ];
        let mut query = Query::parse(text, &KNOWN);
        let named = KNOWN[..4].iter().filter(|name| query.get(name).is_some());
        if named.count() != 1 {
            let detail = "exactly one of email, user, request and notification is required";
            query.fail("email", "missing_field", detail);
        }
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
        query.finish()?;
        Ok(Self {
            selector,
            since: since.unwrap_or(Timestamp(0)),
            until: until.unwrap_or(Timestamp(i64::MAX)),
            limit: limit.unwrap_or(DEFAULT_ENTRIES),
        })
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

/// Reads the table `[timeline]`: `token_env` names the variable with the secret of [`route`].
/// Returns `None` without the table.
pub fn read_token(root: &Object<'_>, env: &Env) -> Option<Secret> {
    root.section("timeline", |table| {
        let variable = table.required("token_env", |field| field.text(1..=128))?;
        match env.secret(&variable) {
            Some(token) if token.expose().len() >= MIN_TOKEN_BYTES => Some(token),
            Some(_) => {
                let detail = format!("{variable} must have at least {MIN_TOKEN_BYTES} characters");
                table.fail("invalid_length", detail);
                None
            }
            None => {
                table.fail(
                    "missing_field",
                    format!("the variable {variable} is not set"),
                );
                None
            }
        }
    })
}

/// Returns the route `GET /admin/timeline`, or no route without a token. A request needs the token
/// as a bearer token, because the admin listener has no other authentication and the time line is
/// personal data.
pub fn route<F, R>(token: Option<&Secret>, clock: Clock, read: F) -> Router
where
    F: Fn(TimelineQuery) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Timeline, Problem>> + Send,
{
    let Some(token) = token else {
        return Router::new();
    };
    let expected = Sha256::digest(token.expose());
    let handler = move |headers: HeaderMap, RawQuery(query): RawQuery| {
        let (read, clock) = (read.clone(), clock.clone());
        async move {
            authorize(&headers, &expected)?;
            let query = TimelineQuery::parse(query.as_deref().unwrap_or_default(), clock.now())?;
            let timeline = read(query).await?;
            Ok::<Response, Problem>(no_store(json(StatusCode::OK, &timeline)))
        }
    };
    Router::new().route("/admin/timeline", get(handler))
}

/// Compares digests, in constant time, so that neither the time nor the length reveals the secret.
fn authorize(headers: &HeaderMap, expected: &[u8]) -> Result<(), Problem> {
    let presented = Sha256::digest(bearer(headers)?);
    verify_slices_are_equal(&presented, expected).map_err(|_| {
        Problem::new(Code::AuthenticationRequired).detail("the token of [timeline] is required")
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use tower::ServiceExt;

    use super::*;
    use crate::config::parse;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn entry(at: i64, source: TimelineSource) -> TimelineEntry {
        TimelineEntry::new(Timestamp(at), source, "x")
    }

    #[test]
    fn newest_events_are_kept_in_the_order_of_time() {
        let entries = vec![
            entry(3, TimelineSource::Notify),
            entry(1, TimelineSource::Auth),
            entry(3, TimelineSource::Gateway),
            entry(2, TimelineSource::Auth),
        ];
        let timeline = Timeline::of(entries, 3);
        let found: Vec<_> = timeline
            .entries
            .iter()
            .map(|entry| (entry.at.0, entry.source))
            .collect();
        let expected = [
            (2, TimelineSource::Auth),
            (3, TimelineSource::Gateway),
            (3, TimelineSource::Notify),
        ];
        assert_eq!(
            (found.as_slice(), timeline.is_truncated),
            (&expected[..], true)
        );
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

    #[test]
    fn token_must_be_set_and_long() {
        let read = |variables: &[(&str, &str)]| {
            let env: Env = variables.iter().copied().collect();
            let text = "[timeline]\ntoken_env = 'T'\n";
            let token = parse("x.toml", text, |root| Some(read_token(root, &env)));
            token.map(|token| token.map(|token| token.expose().to_owned()))
        };
        assert_eq!(read(&[("T", TOKEN)]).expect("good").as_deref(), Some(TOKEN));
        assert!(read(&[]).is_err() && read(&[("T", "short")]).is_err());
    }

    async fn status(token: Option<&Secret>, authorization: Option<&str>) -> u16 {
        let read = |_: TimelineQuery| async { Ok(Timeline::default()) };
        let router = route(token, Clock::manual(Timestamp(0)), read);
        let mut request = Request::builder().uri("/admin/timeline?user=a");
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = router.oneshot(request).await.expect("a response");
        response.status().as_u16()
    }

    #[tokio::test]
    async fn route_requires_its_token() {
        let token = Secret::from(TOKEN);
        let bearer = format!("Bearer {TOKEN}");
        assert_eq!(status(None, Some(&bearer)).await, 404);
        assert_eq!(status(Some(&token), Some(&bearer)).await, 200);
        for wrong in [
            "Bearer 0123456789abcdef0123456789abcdee",
            "Bearer x",
            "Basic x",
        ] {
            assert_eq!(status(Some(&token), Some(wrong)).await, 401, "{wrong}");
        }
        assert_eq!(status(Some(&token), None).await, 401);
    }
}
