//! The list of routes, for `/admin/routes`.

use serde::Serialize;

use crate::config::{MatchCondition, Route};
use crate::routing::explain::describe_policy;

/// A route, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteSummary {
    /// The name.
    pub name: String,
    /// The methods, separated by commas.
    pub methods: String,
    /// The path template.
    pub path: String,
    /// The host patterns; empty for any host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Names of required header fields and query parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// The authorization policy.
    pub policy: String,
    /// The upstreams with their weights, or the answer of the gateway.
    pub target: String,
    /// The access list, external authorization and rate limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

/// Describes a route; `upstreams` are the names of the upstreams by their positions.
pub(crate) fn summary(route: &Route, upstreams: &[&str]) -> RouteSummary {
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
    let settings = &route.settings;
    let access = settings.access.iter().map(|it| format!("access {it}"));
    let external = settings.authorize.iter();
    let external = external.map(|it| format!("authorized by {}", it.url));
    let rates = settings.limits.iter();
    let rates = rates.map(|it| format!("{} per {:?} by {}", it.requests, it.per, it.by.as_str()));
    let size = format!("body {} bytes", settings.body_bytes);
    let deadline = format!("deadline {:?}", settings.deadline);
    let report_only = settings.report_only.then(|| "report only".to_owned());
    let all = access.chain(external).chain(rates).chain(report_only);
    all.chain([size, deadline]).collect()
}
