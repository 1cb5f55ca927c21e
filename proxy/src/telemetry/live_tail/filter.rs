//! The filter of a reader: the query of `GET /admin/requests`.

use postern_core::network::IpNetwork;
use postern_core::{Code, Problem};
use postern_service::http::Query;
use serde_json::Value;

use super::EVENT_PREFIX;
use crate::telemetry::metrics::{CLIENT_CLOSED_CODE, NO_ROUTE, OK_CODE};

const PARAMETERS: [&str; 7] = [
    "route",
    "status",
    "code",
    "principal",
    "address",
    "path",
    "follow",
];

/// The events that a reader selects: those with all of these properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailFilter {
    /// The name of a route, or `none`.
    route: Option<String>,
    status: Option<StatusFilter>,
    code: Option<String>,
    principal: Option<PrincipalFilter>,
    address: Option<IpNetwork>,
    path: Option<String>,
    /// Whether the stream ends behind the kept events.
    pub(crate) ends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusFilter {
    /// A status, such as 503.
    Exact(u64),
    /// A class, such as 5 for `5xx`.
    Class(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PrincipalFilter {
    /// No caller, or any caller of a kind (`user`, `service`).
    Kind(Option<&'static str>),
    /// A service, by name.
    Service(String),
    /// A caller, by the subject of its token.
    Subject(String),
}

impl TailFilter {
    /// Reads a query string. `is_route` returns whether there is a route of a name.
    ///
    /// # Errors
    /// 400 `invalid_request` with every mistake.
    pub(crate) fn parse(text: &str, is_route: impl Fn(&str) -> bool) -> Result<Self, Problem> {
        let mut query = Query::parse(text, &PARAMETERS);
        let filter = Self {
            route: query.read("route", "must be the name of a route, or none", |name| {
                (name == NO_ROUTE || is_route(name)).then(|| name.to_owned())
            }),
            status: query.read(
                "status",
                "must be a status such as 503 or 5xx",
                StatusFilter::parse,
            ),
            code: query.read(
                "code",
                "must be ok, client_closed or a code of problem-codes.md",
                |code| {
                    let is_known = [OK_CODE, CLIENT_CLOSED_CODE].contains(&code)
                        || Code::named(code).is_some();
                    is_known.then(|| code.to_owned())
                },
            ),
            principal: query.read(
                "principal",
                "must be none, user, service, service:NAME or a subject of 1 to 256 characters",
                PrincipalFilter::parse,
            ),
            address: query.read(
                "address",
                "must be a network such as 192.0.2.0/24",
                IpNetwork::parse,
            ),
            path: query.read(
                "path",
                "must begin with a slash and have at most 1024 bytes",
                |path| (path.starts_with('/') && path.len() <= 1024).then(|| path.to_owned()),
            ),
            ends: query
                .read("follow", "must be true or false", |text| text.parse().ok())
                .is_some_and(|follow: bool| !follow),
        };
        query.finish().map(|()| filter)
    }

    /// Returns whether a server-sent event has all properties.
    pub(super) fn selects(&self, event: &[u8]) -> bool {
        let data = event.strip_prefix(EVENT_PREFIX).unwrap_or_default();
        let event: Value = serde_json::from_slice(data).unwrap_or_default();
        let text = |name: &str| event[name].as_str();
        let status = event["status"].as_u64().unwrap_or(0);
        let is =
            |wanted: &Option<String>, name| wanted.is_none() || wanted.as_deref() == text(name);
        let is_in = |network: &IpNetwork| {
            let client = text("client").and_then(|client| client.parse().ok());
            client.is_some_and(|client| network.contains(client))
        };
        let begins_with = |path: &String| text("path").is_some_and(|it| it.starts_with(path));
        is(&self.code, "code")
            && is(&self.route, "route")
            && self.status.is_none_or(|wanted| wanted.includes(status))
            && self.path.as_ref().is_none_or(begins_with)
            && self.principal.as_ref().is_none_or(|it| it.includes(&event))
            && self.address.as_ref().is_none_or(is_in)
    }
}

impl StatusFilter {
    fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            let class = class.parse().ok()?;
            return (1..=5).contains(&class).then_some(Self::Class(class));
        }
        let status = text.parse().ok()?;
        let is_status = text.len() == 3 && (100..=599).contains(&status);
        is_status.then_some(Self::Exact(status))
    }

    fn includes(self, status: u64) -> bool {
        match self {
            Self::Exact(wanted) => status == wanted,
            Self::Class(class) => status / 100 == class,
        }
    }
}

impl PrincipalFilter {
    fn parse(text: &str) -> Option<Self> {
        let is_text = (1..=256).contains(&text.len()) && !text.contains(char::is_control);
        Some(match text {
            _ if !is_text => return None,
            "none" => Self::Kind(None),
            "user" => Self::Kind(Some("user")),
            "service" => Self::Kind(Some("service")),
            _ => match text.strip_prefix("service:") {
                Some("") => return None,
                Some(name) => Self::Service(name.to_owned()),
                None => Self::Subject(text.to_owned()),
            },
        })
    }

    fn includes(&self, event: &Value) -> bool {
        let text = |name: &str| event[name].as_str();
        match self {
            Self::Kind(kind) => text("kind") == *kind,
            Self::Service(name) => text("caller_service") == Some(name),
            Self::Subject(subject) => text("subject") == Some(subject),
        }
    }
}
