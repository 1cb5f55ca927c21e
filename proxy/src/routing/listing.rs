//! The list of routes, for `postern-proxy routes` and `/routes` of the admin listener.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::config::{Config, MatchCondition, Route};
use crate::routing::explain::describe_policy;

/// A route, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteSummary {
    /// The name.
    pub name: String,
    /// The methods, separated by commas.
    pub methods: String,
    /// The path template.
    pub path: String,
    /// The host patterns; empty for any host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Names of required header fields and query parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// The authorization policy.
    pub policy: String,
    /// The upstreams with their weights, or the answer of the gateway.
    pub target: String,
    /// The access list, external authorization and rate limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

/// Returns the routes of a configuration.
#[must_use]
pub fn routes(config: &Config) -> Vec<RouteSummary> {
    let names: Vec<&str> = config.upstreams.iter().map(|it| it.name.as_str()).collect();
    summaries(&config.routes, &names)
}

/// Returns the routes; `upstreams` are the names of the upstreams by their positions.
pub(crate) fn summaries(routes: &[Route], upstreams: &[&str]) -> Vec<RouteSummary> {
    routes.iter().map(|it| summary(it, upstreams)).collect()
}

fn summary(route: &Route, upstreams: &[&str]) -> RouteSummary {
    let pattern = &route.pattern;
    let hosts = pattern.hosts.iter().map(ToString::to_string);
    // Without values, which may be secrets, as of a proxy in front.
    let condition = |kind: &str, it: &MatchCondition| format!("{kind} {}", it.name);
    let ignore_case = pattern
        .path
        .ignore_case
        .then(|| "path in any case".to_owned());
    let headers = pattern.headers.iter().map(|it| condition("header", it));
    let queries = pattern.queries.iter().map(|it| condition("query", it));
    RouteSummary {
        name: route.name.clone(),
        methods: pattern.methods.to_string(),
        path: pattern.path.template.clone(),
        hosts: hosts.collect(),
        conditions: ignore_case
            .into_iter()
            .chain(headers)
            .chain(queries)
            .collect(),
        policy: describe_policy(&route.policy),
        target: target(route, upstreams),
        limits: limits(route),
    }
}

/// Describes the upstreams, or the answer of the gateway.
fn target(route: &Route, upstreams: &[&str]) -> String {
    if let Some(answer) = &route.answer {
        return format!("{} {}", answer.decision(), answer.status().as_u16());
    }
    let name = |at: usize| upstreams.get(at).copied().unwrap_or("unknown");
    let names = route
        .targets
        .iter()
        .map(|target| match route.targets.len() {
            1 => name(target.upstream).to_owned(),
            _ => format!("{} ({})", name(target.upstream), target.weight),
        });
    names.collect::<Vec<_>>().join(", ")
}

/// Describes what else can reject a request.
pub(super) fn limits(route: &Route) -> Vec<String> {
    let marked = |report_only: bool| if report_only { " (report only)" } else { "" };
    let settings = &route.settings;
    let access = settings.access.iter().map(|it| format!("access {it}"));
    let external = settings.authorize.iter().map(|it| {
        let (url, mark) = (&it.url, marked(it.report_only));
        format!("authorized by {url}{mark}")
    });
    let rates = settings.limits.iter().map(|it| {
        let (by, mark) = (it.by.as_str(), marked(it.report_only));
        format!("{} per {:?} by {by}{mark}", it.requests, it.per)
    });
    let size = format!("body {} bytes", settings.body_bytes);
    let deadline = format!("deadline {:?}", settings.deadline);
    let all = access.chain(external).chain(rates);
    all.chain([size, deadline]).collect()
}

/// Formats routes as text, one block of lines each.
#[must_use]
pub fn format_routes(routes: &[RouteSummary]) -> String {
    let mut out = String::new();
    for route in routes {
        let (name, methods, path) = (&route.name, &route.methods, &route.path);
        let _memory_only = writeln!(out, "{name}: {methods} {path}");
        for (label, text) in [
            ("hosts", route.hosts.join(", ")),
            ("with", route.conditions.join(", ")),
            ("policy", route.policy.clone()),
            ("target", route.target.clone()),
            ("limits", route.limits.join(", ")),
        ] {
            if !text.is_empty() {
                let _memory_only = writeln!(out, "    {label:<8}{text}");
            }
        }
    }
    out
}
