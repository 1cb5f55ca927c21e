//! The difference of two configurations: which requests change their decision.
//!
//! Routes distinguish a finite number of kinds of requests and callers, so the comparison is exact:
//! every kind is decided by both configurations with the code that decides on requests, and each
//! change is reported once, with the simplest request that shows it.

pub(super) mod callers;
pub(super) mod request_space;

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use crate::config::{Config, Route, RoutePolicy, TestToken, UpstreamConfig};
use crate::routing::decision::{access_list, decide};
use crate::routing::outcome::Outcome;
use crate::routing::route_tests::caller_for;
use crate::routing::router::RouteRequest;
use crate::routing::table::{RouteMatch, RouteTable};

use callers::{addresses, callers};
pub use request_space::TooManyRequests;
use request_space::{MAX_REQUESTS, Representative, methods, representatives};

/// Decisions that are compared for each of the maximum kinds of requests: most routes have few kinds of
/// callers, and the requests of a pair of routes are compared once.
const COMPARED_PER_REQUEST: usize = 5;

/// A change of the decision on some requests, with an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The method of the example.
    pub method: String,
    /// Its host.
    pub host: String,
    /// Its path and query.
    pub target: String,
    /// Its header fields.
    pub headers: Vec<(String, String)>,
    /// Its caller; `None` if the decision changes alike for every caller.
    pub caller: Option<String>,
    /// Its client address, if an access list depends on it and it is known.
    pub client_address: Option<IpAddr>,
    /// The decision of the old configuration.
    pub old: DecisionSummary,
    /// The decision of the new configuration.
    pub new: DecisionSummary,
    /// Whether the request was rejected and no longer is, reaches an upstream or path that it did not
    /// reach before, may have an ambiguous path, or has lost its external authorization.
    pub widened: bool,
}

/// The decision of one configuration on a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DecisionSummary {
    /// The name of the route; `None` if none matches.
    pub route: Option<String>,
    /// `allow`, `redirect`, `respond`, or a problem code.
    pub decision: String,
    /// The status; `None` if the upstream decides.
    pub status: Option<u16>,
    /// The upstreams with their weights and the forwarded path, or the answer.
    pub detail: String,
    /// The URL of the external authorization, if it is asked.
    pub external_authorization: Option<String>,
    /// The configured answer of the gateway itself.
    #[serde(skip)]
    answer: String,
    /// The upstreams with the forwarded path, and whether ambiguous paths are accepted.
    #[serde(skip)]
    reached: Vec<String>,
}

/// Route, decision and status.
type DecisionKind = (Option<String>, String, Option<u16>);

/// The changes that were found, and the number of decisions that may still be compared.
struct Comparison {
    found: Vec<Difference>,
    /// Routes, decisions and caller of the changes.
    seen: HashSet<(Option<String>, DecisionKind, DecisionKind)>,
    remaining: usize,
    max: usize,
}

struct Side<'c> {
    config: &'c Config,
    table: RouteTable,
}

/// Returns the changes of decisions, one for each pair of routes and group of callers.
///
/// Compared are the route, the policy, access lists of routes, external authorization, redirects
/// and fixed responses, upstreams with their weights, and the forwarded path. Settings that do not
/// decide where a request goes, such as limits and header changes, are not.
///
/// # Errors
/// The routes distinguish too many kinds of requests.
pub fn differences(old: &Config, new: &Config) -> Result<Vec<Difference>, TooManyRequests> {
    differences_within(old, new, MAX_REQUESTS)
}

/// Returns the changes as [`differences`] does, of at most `max` kinds of requests, and five times as
/// many with their callers and client addresses.
///
/// # Errors
/// The routes distinguish more.
pub(crate) fn differences_within(
    old: &Config,
    new: &Config,
    max: usize,
) -> Result<Vec<Difference>, TooManyRequests> {
    let requests = representatives(&old.routes, &new.routes, max)?;
    let methods = methods(&old.routes, &new.routes);
    let sides = [Side::new(old), Side::new(new)];
    let mut compared = HashSet::new();
    let mut comparison = Comparison::new(max.saturating_mul(COMPARED_PER_REQUEST));
    for request in &requests {
        let headers = header_map(&request.headers);
        for method in methods.iter().copied() {
            let lookup = RouteRequest {
                host: &request.host,
                path: &request.path,
                query: Some(request.query.as_str()).filter(|query| !query.is_empty()),
                method,
                headers: &headers,
            };
            let matches = sides.each_ref().map(|side| side.table.find(&lookup));
            // The first request of a pair of routes represents the others, unless it depends on the
            // request whether both find the same owner in it.
            let policies = [0, 1].map(|side| sides[side].policy(matches[side]));
            let owners = policies.map(|policy| policy?.owner(&request.path));
            if compared.insert((matches, owners[0] == owners[1])) {
                compare(&sides, matches, &lookup, request, &mut comparison)?;
            }
        }
    }
    Ok(comparison.found)
}

/// Returns the names and texts of these fields, which are all but those that are compared otherwise.
macro_rules! settings {
    ($config:ident: $($name:ident)+) => {{
        let Config { upstreams: _, routes: _, tests: _, $($name),+ } = $config;
        [$((stringify!($name), format!("{:?}", $name))),+]
    }};
}

/// Returns a sentence with the changed settings that are not compared, and may decide who a caller
/// is, where it is, where a request goes, or how many and how large requests are accepted.
#[must_use]
pub fn uncompared_changes(old: &Config, new: &Config) -> Option<String> {
    let [before, after] = [old, new].map(|config| {
        settings! { config:
            listen acme admin config_history log workers identity tokens api_keys limits stop
            handover access_log tracing cors response_headers
        }
    });
    let changed = before.iter().zip(&after).filter(|(old, new)| old != new);
    let mut names: Vec<&str> = changed.map(|((name, _), _)| *name).collect();
    let is_changed = |new: &UpstreamConfig| {
        let mut all = old.upstreams.iter();
        all.any(|it| it.name == new.name && format!("{it:?}") != format!("{new:?}"))
    };
    let body_bytes = |route: &Route| route.settings.body_bytes;
    let largest = old.routes.iter().map(body_bytes).max().unwrap_or_default();
    let is_larger =
        |route: &Route| body_bytes(route) > same_route(old, route).map_or(largest, body_bytes);
    let is_looser = |route: &Route| {
        let before = same_route(old, route).filter(|same| !same.settings.report_only);
        let mut before = before.iter().flat_map(|same| &same.settings.limits);
        let after = &route.settings;
        let is_kept = |limit| after.limits.iter().any(|it| it.is_at_most(limit));
        before.any(|limit| after.report_only || !is_kept(limit))
    };
    names.extend(new.upstreams.iter().any(is_changed).then_some("upstream"));
    let is_larger = new.routes.iter().any(is_larger);
    names.extend(is_larger.then_some("a larger body_bytes"));
    let is_looser = new.routes.iter().any(is_looser);
    names.extend(is_looser.then_some("a higher rate limit"));
    (!names.is_empty()).then(|| format!("changes that are not compared: {}", names.join(", ")))
}

/// Returns the route of the old configuration with the name of a route, or with its path.
fn same_route<'c>(old: &'c Config, route: &Route) -> Option<&'c Route> {
    let has_path =
        |it: &&Route| it.pattern.path == route.pattern.path && it.pattern.covers(&route.pattern);
    let by_name = old.routes.iter().find(|it| it.name == route.name);
    by_name.or_else(|| old.routes.iter().find(has_path))
}

/// Compares the decisions on one request for all callers.
fn compare(
    sides: &[Side<'_>; 2],
    matches: [RouteMatch; 2],
    lookup: &RouteRequest<'_>,
    request: &Representative,
    comparison: &mut Comparison,
) -> Result<(), TooManyRequests> {
    let [old, new] = sides;
    let policies = [old.policy(matches[0]), new.policy(matches[1])];
    let lists = [
        access_list(&old.table, matches[0]),
        access_list(&new.table, matches[1]),
    ];
    let callers = callers(policies, lookup.path, comparison.remaining);
    let callers = callers.ok_or(TooManyRequests(comparison.max))?;
    let addresses = addresses(lists);
    comparison.count(callers.len().saturating_mul(addresses.len()))?;
    for address in addresses {
        let mut changes: Vec<(&TestToken, DecisionSummary, DecisionSummary)> = Vec::new();
        for caller in &callers {
            let before = old.decide(matches[0], lookup, caller, address);
            let after = new.decide(matches[1], lookup, caller, address);
            if before.differs(&after) {
                changes.push((caller, before, after));
            }
        }
        let all_alike = changes.len() == callers.len()
            && changes
                .windows(2)
                .all(|pair| pair[0].1 == pair[1].1 && pair[0].2 == pair[1].2);
        if all_alike {
            changes.truncate(1);
        }
        for (caller, before, after) in changes {
            comparison.add(Difference {
                method: lookup.method.to_owned(),
                host: request.host.clone(),
                target: match request.query.as_str() {
                    "" => request.path.clone(),
                    query => format!("{}?{query}", request.path),
                },
                headers: request.headers.clone(),
                caller: (!all_alike).then(|| caller.to_string()),
                client_address: address,
                widened: after.is_wider_than(&before),
                old: before,
                new: after,
            });
        }
    }
    Ok(())
}

pub(super) fn header_map(fields: &[(String, String)]) -> HeaderMap {
    fields
        .iter()
        .filter_map(|(name, value)| {
            let name = HeaderName::try_from(name.as_str()).ok()?;
            Some((name, HeaderValue::try_from(value.as_str()).ok()?))
        })
        .collect()
}

impl Comparison {
    fn new(max: usize) -> Self {
        Self {
            found: Vec::new(),
            seen: HashSet::new(),
            remaining: max,
            max,
        }
    }

    /// Counts decisions before they are compared.
    fn count(&mut self, decisions: usize) -> Result<(), TooManyRequests> {
        let remaining = self.remaining.checked_sub(decisions);
        self.remaining = remaining.ok_or(TooManyRequests(self.max))?;
        Ok(())
    }

    /// Adds a change, unless an earlier one has the same routes, decisions and caller.
    fn add(&mut self, it: Difference) {
        let key = (it.caller.clone(), it.old.kind(), it.new.kind());
        if self.seen.insert(key) {
            self.found.push(it);
        }
    }
}

impl<'c> Side<'c> {
    fn new(config: &'c Config) -> Self {
        Self {
            config,
            table: RouteTable::new(config.routes.clone()),
        }
    }

    fn policy(&self, found: RouteMatch) -> Option<&RoutePolicy> {
        let route = found.route()?;
        Some(&self.table.routes[route].policy)
    }

    fn decide(
        &self,
        found: RouteMatch,
        request: &RouteRequest<'_>,
        caller: &TestToken,
        address: Option<IpAddr>,
    ) -> DecisionSummary {
        let caller = caller_for(caller);
        let variables = request.explained(true, address);
        let at = (found, request.path);
        let decided = decide(&self.table, at, caller.as_ref(), address, &mut None);
        let outcome = Outcome::of(&self.table, &variables, &decided);
        let route = found.route().map(|index| &self.table.routes[index]);
        let mut decision = DecisionSummary {
            route: route.map(|route| route.name.clone()),
            decision: outcome.decision().to_owned(),
            status: outcome.status(),
            detail: String::new(),
            external_authorization: None,
            answer: String::new(),
            reached: Vec::new(),
        };
        let (Some(route), false) = (route, decision.is_rejection()) else {
            return decision;
        };
        let authorize = route.settings.authorize.as_ref();
        let authorize = authorize.filter(|_| !route.settings.report_only);
        decision.external_authorization = authorize.map(|check| check.url.to_string());
        match &outcome {
            Outcome::Answered(answer, location) => {
                decision.detail = location.clone().unwrap_or_default();
                decision.answer = format!("{answer:?}");
            }
            Outcome::Forwarded | Outcome::Preflight | Outcome::Rejected(_) => {
                let path = match &route.rewrite {
                    Some(rewrite) => rewrite.apply(request.path.as_bytes()),
                    None => request.path.into(),
                };
                let path = String::from_utf8_lossy(&path);
                let used = route.targets.iter().filter(|target| target.weight > 0);
                let mut targets = Vec::new();
                for target in used {
                    let name = &self.config.upstreams[target.upstream].name;
                    targets.push(match route.targets.len() {
                        1 => name.clone(),
                        _ => format!("{name} (weight {})", target.weight),
                    });
                    decision.reached.push(format!("{name}, path {path}"));
                }
                targets.sort_unstable();
                decision.detail = format!("upstream {}", targets.join(", "));
                if route.rewrite.is_some() {
                    decision.detail.push_str(&format!(", path {path}"));
                }
                if route.settings.ambiguous_paths {
                    decision.detail.push_str(", ambiguous paths");
                    decision.reached.push("ambiguous paths".to_owned());
                }
            }
        }
        decision
    }
}

impl DecisionSummary {
    /// Returns whether clients can notice the difference; the name of the route is none.
    fn differs(&self, other: &Self) -> bool {
        (&self.decision, self.status, &self.detail, &self.answer)
            != (&other.decision, other.status, &other.detail, &other.answer)
            || self.external_authorization != other.external_authorization
    }

    /// Returns what a group of changes has in common: the route, the decision and the status.
    fn kind(&self) -> DecisionKind {
        (self.route.clone(), self.decision.clone(), self.status)
    }

    fn is_rejection(&self) -> bool {
        !matches!(self.decision.as_str(), "allow" | "redirect" | "respond")
    }

    fn is_wider_than(&self, old: &Self) -> bool {
        let is_new = |target: &String| !old.reached.contains(target);
        let external = &old.external_authorization;
        !self.is_rejection()
            && (old.is_rejection()
                || self.reached.iter().any(is_new)
                || external.is_some() && *external != self.external_authorization)
    }
}

impl fmt::Display for DecisionSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = self.status {
            write!(f, "{status} ")?;
        }
        f.write_str(&self.decision)?;
        if !self.detail.is_empty() {
            write!(f, ", {}", self.detail)?;
        }
        if let Some(url) = &self.external_authorization {
            write!(f, ", if {url} allows it")?;
        }
        match &self.route {
            Some(route) => write!(f, " (route {route})"),
            None => f.write_str(" (no route)"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} (Host: {})", self.method, self.target, self.host)?;
        for (name, value) in &self.headers {
            writeln!(f, "    header   {name}: {value}")?;
        }
        writeln!(
            f,
            "    caller   {}",
            self.caller.as_deref().unwrap_or("any")
        )?;
        if let Some(address) = self.client_address {
            writeln!(f, "    address  {address}")?;
        }
        writeln!(f, "    old      {}", self.old)?;
        writeln!(f, "    new      {}", self.new)?;
        if self.widened {
            writeln!(f, "    widened")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
