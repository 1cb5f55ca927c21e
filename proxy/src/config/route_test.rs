//! `[[test]]`: expected decisions, checked without a running gateway.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use postern_core::decode::{Field, Object};
use postern_core::settings;
use postern_http::message::head::is_authority;
use serde_json::json;

use crate::config::upstream::find_upstream;
use crate::config::{UpstreamConfig, policy, short_texts};

/// The assumed caller of a test request. These tokens are not signed and exist within tests only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestToken {
    /// No token.
    None,
    /// A user.
    User {
        /// The subject; default `test`.
        subject: String,
        /// Group memberships.
        groups: Vec<String>,
        /// Granted scopes.
        scopes: Vec<String>,
        /// Additional claims.
        claims: Vec<(String, serde_json::Value)>,
    },
    /// A service.
    Service {
        /// The name.
        name: String,
        /// Granted scopes.
        scopes: Vec<String>,
    },
}

/// The subject of a user whose subject is not given.
const ASSUMED_SUBJECT: &str = "test";

const DECISIONS: [&str; 3] = ["allow", "redirect", "respond"];

settings! {
    /// A request and its expected decision.
    ///
    /// Whether the route exists is examined when all are known.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RouteTest(table, place: String, upstreams: &[UpstreamConfig]) {
        /// The path of its table in the file, such as `test.0`.
        pub place: String = (Some(place)),
        /// Method and target: `"GET /actors/42?a=b"`.
        pub request: (String, String) => read_request,
        /// `Host`.
        pub host: String = "localhost" => read_host,
        /// Header fields.
        pub headers: HeaderMap = { Some(HeaderMap::new()) } ("none")
            => |field| field.object(|table| Some(read_headers(table))),
        /// Client address; access lists refuse an unknown one.
        pub client_address: Option<IpAddr> = None ("unknown") => read_address,
        /// Caller.
        pub token: TestToken = "none" => TestToken::read,
        /// Route that must be selected.
        pub route: Option<String> = None ("not compared")
            => |field| field.typed("name").text(1..=100),
        /// Upstream that must be possible.
        pub upstream: Option<String> = None ("not compared") => |field| {
            let name = field.typed("name").text(1..=64)?;
            find_upstream(upstreams, &name, field).and(Some(name))
        },
        /// `allow` (forwarded), `redirect`, `respond` or a problem code.
        pub decision: String => read_decision,
        /// Status of the gateway's own response.
        pub status: Option<u16> = None ("not compared") => |field| field.integer(200..=599),
        /// `Location` of a redirect.
        pub location: Option<String> = None ("not compared") => |field| field.text(1..=4096),
    }
}

settings! {
    fn read_user(table) -> TestToken {
        /// Subject of the user.
        subject = "test" => |field| field.text(1..=256),
        /// Groups and scopes of the token.
        groups = [] => short_texts,
        /// Groups and scopes of the token.
        scopes = [] => short_texts,
        /// Claims of the token.
        claims = { Some(Vec::new()) } ("none") => |field| field.object(policy::read_claims),
    } => TestToken::User { subject, groups, scopes, claims }
}

pub(crate) fn read_request(field: Field<'_>) -> Option<(String, String)> {
    let text = field.string_as(|| json!({ "type": "string", "pattern": "^[^ ]+ [^ ]+$" }))?;
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|it| it.is_ascii_graphic());
    match text.split_once(' ') {
        Some((method, target)) if is_word(method) && is_word(target) => {
            Some((method.to_owned(), target.to_owned()))
        }
        Some(_) | None => field.fail(
            "invalid_format",
            "must be a method and a target, such as GET /a?b=c",
        ),
    }
}

pub(crate) fn read_host(field: Field<'_>) -> Option<String> {
    let host = field.text(1..=260)?;
    match is_authority(host.as_bytes()) {
        true => Some(host),
        false => field.fail("invalid_format", "must be a host, with or without a port"),
    }
}

pub(crate) fn read_address(field: Field<'_>) -> Option<IpAddr> {
    let address = field.typed("IP address").string()?.parse::<IpAddr>().ok();
    let address = address.map(|address| address.to_canonical());
    address.or_else(|| field.fail("invalid_format", "must be an IP address such as 192.0.2.1"))
}

/// Reads `allow`, `redirect`, `respond` or a problem code.
fn read_decision(field: Field<'_>) -> Option<String> {
    let code = field.text(1..=64)?;
    let mut codes = postern_core::Code::ALL.iter();
    if DECISIONS.contains(&code.as_str()) || codes.any(|known| known.as_str() == code) {
        Some(code)
    } else {
        let choices = "must be allow, redirect, respond or a code of problem-codes.md";
        field.fail("invalid_choice", choices)
    }
}

/// Reads `{ X-Beta = "1" }`.
pub(crate) fn read_headers(section: &Object<'_>) -> HeaderMap {
    let fields = section.entries(|name, field| {
        let value = field.text(0..=4096)?;
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => Some((name, value)),
            (Err(_), _) | (_, Err(_)) => field.fail("invalid_format", "is not a header"),
        }
    });
    fields.into_iter().collect()
}

impl TestToken {
    /// Returns a user without groups, scopes and claims.
    #[must_use]
    pub fn user(subject: &str) -> Self {
        Self::User {
            subject: subject.to_owned(),
            groups: Vec::new(),
            scopes: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Returns a service without scopes.
    #[must_use]
    pub fn service(name: &str) -> Self {
        Self::Service {
            name: name.to_owned(),
            scopes: Vec::new(),
        }
    }

    /// Parses `none`, `user`, `user:SUBJECT` or `service:NAME`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            None if text == "user" => Some(Self::user(ASSUMED_SUBJECT)),
            Some(("user", subject)) if !subject.is_empty() => Some(Self::user(subject)),
            Some(("service", name)) if !name.is_empty() => Some(Self::service(name)),
            None | Some(_) => None,
        }
    }

    /// Reads a text of [`TestToken::parse`] or, for a user, `{ subject = "…", groups = […],
    /// scopes = […], claims = { … } }`.
    pub(crate) fn read(field: Field<'_>) -> Option<Self> {
        let field = field.typed("`none`, `user`, `user:SUBJECT`, `service:NAME`, table");
        let form = || json!({ "type": "string", "pattern": "^(none|user(:.+)?|service:.+)$" });
        let choices = "must be none, user, user:SUBJECT, service:NAME or a table";
        if let Some(text) = field.if_string(form) {
            return Self::parse(text).or_else(|| field.fail("invalid_choice", choices));
        }
        policy::table_or(field, choices, read_user)
    }
}
