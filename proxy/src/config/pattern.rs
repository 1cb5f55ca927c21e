//! Match conditions of a route.

use postern_http::message::host::{domains, host_name, is_host_name};
use std::collections::BTreeSet;
use std::fmt;

/// The conditions under which a request matches a route.
#[derive(Clone, Debug)]
pub struct RoutePattern {
    /// Host patterns, one of which must match; empty for any host.
    pub hosts: Vec<HostPattern>,
    /// The path.
    pub path: PathPattern,
    /// The methods.
    pub methods: MethodSet,
    /// Required header fields; names folded as [`postern_http::message::headers`] describes.
    pub headers: Vec<MatchCondition>,
    /// Required query parameters, decoded.
    pub queries: Vec<MatchCondition>,
}

/// A pattern of host names, in lower case and without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// A single name.
    Exact(String),
    /// Any subdomain of this name (`*.example.com` is stored as `example.com`).
    Subdomains(String),
}

/// A path template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// The template as configured; the route label of metrics and access events.
    pub template: String,
    /// The segments, without a trailing `*`.
    pub segments: Vec<PathSegment>,
    /// Whether the template ends in `/*`: it matches its path without `/*`, and all paths below.
    pub prefix: bool,
    /// Whether literal segments match in any case.
    pub ignore_case: bool,
}

/// A segment of a path template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// Exactly this text.
    Literal(String),
    /// Any text that is not empty.
    Param(String),
}

/// A set of HTTP methods: a bit for each of `METHODS`, and one for all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MethodSet(u64);

/// A required header field or query parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchCondition {
    /// The name.
    pub name: String,
    /// The required value; `None` for any value.
    pub value: Option<String>,
}

/// Methods that routes can name, in the order of the `Allow` field: the common ones, and those of the
/// IANA registry and of caches.
#[rustfmt::skip]
const METHODS: [&str; 38] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS",
    "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK",
    "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE",
    "ORDERPATCH", "PROPFIND", "PROPPATCH", "PURGE", "QUERY", "REBIND", "REPORT", "SEARCH", "UNBIND",
    "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
];

/// The bit of the methods that `METHODS` does not contain.
const OTHER: u64 = 1 << 63;

impl MethodSet {
    /// All methods, written as `*`.
    pub const ALL: Self = Self(u64::MAX);

    pub(crate) const COMMON: Self = Self(0x7f);

    /// Returns the set of a method that routes can name.
    pub(super) fn named(method: &str) -> Option<Self> {
        let bit = METHODS.iter().position(|known| *known == method);
        bit.map(|bit| Self(1 << bit))
    }

    /// Returns the set to which a method belongs; `None` if no route accepts it: TRACE, whose answer
    /// would contain the fields that the gateway adds, and another case of the letters of a known
    /// method, because an upstream might take it for that.
    #[must_use]
    pub fn of(method: &str) -> Option<Self> {
        let is_like = |known: &&str| known.eq_ignore_ascii_case(method);
        let is_refused = || METHODS.iter().chain(&["TRACE"]).any(is_like);
        Self::named(method).or_else(|| (!is_refused()).then_some(Self(OTHER)))
    }

    /// Returns the JSON schema of one item of `methods`.
    pub(super) fn schema() -> serde_json::Value {
        let names: Vec<&str> = std::iter::once("*").chain(METHODS).collect();
        serde_json::json!({ "enum": names })
    }

    /// Returns the names of the methods that have one.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let named = METHODS.into_iter().enumerate();
        named
            .filter(move |(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, name)| name)
    }

    /// Returns the value of `Allow`; the common methods if all are allowed.
    pub(crate) fn allow(self) -> String {
        match self {
            Self::ALL => Self::COMMON.to_string(),
            some => some.to_string(),
        }
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the sets intersect.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the other set is a subset of this one.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for MethodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("*");
        }
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

impl HostPattern {
    /// Parses `example.com` or `*.example.com`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = is_host_name(name.as_bytes()).then(|| host_name(name).into_owned())?;
        Some(match below {
            true => Self::Subdomains(name),
            false => Self::Exact(name),
        })
    }

    /// Returns whether the pattern matches a host, as [`postern_http::message::host::host_name`] returns it.
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Subdomains(name) => domains(host).any(|domain| domain == name),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Subdomains(name) => write!(f, "*.{name}"),
        }
    }
}

impl PathPattern {
    /// Parses a template such as `/actors/{id}` or `/files/*`.
    ///
    /// Literals are limited to letters, digits and `-._~`, which have exactly one spelling in a
    /// canonical path: an escaped path cannot be equivalent to a literal without being equal to it.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn parse(template: &str) -> Result<Self, String> {
        let Some(rest) = template.strip_prefix('/') else {
            return Err("must begin with /".to_owned());
        };
        let (rest, prefix) = match rest.strip_suffix('*') {
            Some(rest) if rest.is_empty() || rest.ends_with('/') => (rest, true),
            Some(_) => return Err("may use * only as the whole last segment".to_owned()),
            None => (rest, false),
        };
        let mut segments = Vec::new();
        let mut parts: Vec<&str> = rest.split('/').collect();
        if prefix {
            // What is behind the last slash.
            parts.pop();
        }
        for (at, part) in parts.iter().enumerate() {
            if part.is_empty() && (at + 1 < parts.len() || prefix) {
                return Err("must not contain an empty segment".to_owned());
            }
            segments.push(PathSegment::parse(part)?);
        }
        Ok(Self {
            template: template.to_owned(),
            segments,
            prefix,
            ignore_case: false,
        })
    }

    /// Returns the position of the segment of a parameter.
    pub(crate) fn param(&self, name: &str) -> Option<usize> {
        let is_param = |it: &PathSegment| matches!(it, PathSegment::Param(known) if known == name);
        self.segments.iter().position(is_param)
    }

    /// Returns whether a path whose segment at this position is `text` can match.
    pub(crate) fn accepts(&self, at: usize, text: &str) -> bool {
        match self.segments.get(at) {
            Some(PathSegment::Literal(literal)) if self.ignore_case => {
                literal.eq_ignore_ascii_case(text)
            }
            Some(PathSegment::Literal(literal)) => literal == text,
            Some(PathSegment::Param(_)) => !text.is_empty(),
            None => self.prefix,
        }
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let segments = path.split('/').skip(1);
        segments.clone().count() >= self.segments.len()
            && segments
                .enumerate()
                .all(|(at, text)| self.accepts(at, text))
    }
}

impl PathSegment {
    fn parse(text: &str) -> Result<Self, String> {
        let has_only = |text: &str, others: &[u8]| {
            let mut bytes = text.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
        };
        let braced = text.strip_prefix('{');
        match (text, braced.and_then(|rest| rest.strip_suffix('}'))) {
            (_, Some(name)) if !name.is_empty() && has_only(name, b"_") => {
                Ok(Self::Param(name.to_owned()))
            }
            (_, Some(_)) => Err(format!("has a bad name in {text}")),
            ("." | "..", None) => Err("must not contain the segments . and ..".to_owned()),
            (_, None) if has_only(text, b"-._~") => Ok(Self::Literal(text.to_owned())),
            (_, None) => Err(format!(
                "may hold letters, digits and -._~ or a whole {{param}} in a segment, not {text}"
            )),
        }
    }
}

impl RoutePattern {
    pub(crate) fn condition_count(&self) -> usize {
        self.headers.len() + self.queries.len()
    }

    /// Returns the path and conditions without parameter names. Patterns with the same shape match
    /// the same requests, apart from methods and hosts.
    #[must_use]
    pub fn shape(&self) -> String {
        let segment = |segment: &PathSegment| match segment {
            PathSegment::Literal(text) if self.path.ignore_case => text.to_ascii_lowercase(),
            PathSegment::Literal(text) => text.clone(),
            PathSegment::Param(_) => "{}".to_owned(),
        };
        let segments: Vec<String> = self.path.segments.iter().map(segment).collect();
        let conditions = [&self.headers, &self.queries];
        let conditions = conditions.map(|list| list.iter().collect::<BTreeSet<_>>());
        let (prefix, ignore_case) = (self.path.prefix, self.path.ignore_case);
        format!("{:?}", (segments, prefix, ignore_case, conditions))
    }

    /// Returns whether this pattern matches every request that another pattern of the same shape
    /// matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.methods.covers(other.methods)
            && self.hosts.is_empty() == other.hosts.is_empty()
            && other.hosts.iter().all(|host| self.hosts.contains(host))
    }
}
