//! The `[[test]]` entries of a configuration, which run before it is activated.

use std::sync::Arc;

use postern_core::Code;
use postern_core::config::Env;
use postern_core::decode::Object;
use postern_core::token::{Caller, Service, User};
use postern_http::message::target::{RequestTarget, TargetFault};

use crate::config::{Config, Route, RouteTest, TestToken, UpstreamConfig};
use crate::routing::decision::decide;
use crate::routing::outcome::Outcome;
use crate::routing::router::RouteRequest;
use crate::routing::table::{RouteMatch, RouteTable};

impl Config {
    /// Reads the root of the document and runs its tests. Returns `None`, with the mistakes
    /// recorded, if it cannot be decoded.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let mut config = Self::decode(root, env)?;
        let routes = std::mem::take(&mut config.routes);
        config.routes = run_tests(root, routes, &config.upstreams, &config.tests);
        Some(config)
    }
}

/// Runs the tests of a configuration without other mistakes, records failures at their lines, and
/// returns the routes.
fn run_tests(
    root: &Object<'_>,
    routes: Vec<Route>,
    upstreams: &[UpstreamConfig],
    tests: &[RouteTest],
) -> Vec<Route> {
    if tests.is_empty() || !root.is_good() {
        return routes;
    }
    let table = RouteTable::new(routes);
    for test in tests {
        if let Some(wrong) = test_failure(&table, upstreams, test) {
            let (method, target) = &test.request;
            let detail = format!("test \"{method} {target}\": {wrong}");
            root.fail_at(&test.place, "test_failed", detail);
        }
    }
    table.routes
}

/// Returns for each test of a decoded configuration why it fails; `None` if it passes.
pub(crate) fn test_failures(config: &Config) -> Vec<Option<String>> {
    if config.tests.is_empty() {
        return Vec::new();
    }
    let table = RouteTable::new(config.routes.clone());
    let tests = config.tests.iter();
    tests
        .map(|test| test_failure(&table, &config.upstreams, test))
        .collect()
}

fn test_failure(
    table: &RouteTable,
    upstreams: &[UpstreamConfig],
    test: &RouteTest,
) -> Option<String> {
    let (route, outcome) = match find(table, test) {
        Err(_) => (None, Outcome::Rejected(Code::InvalidTarget)),
        Ok((request, found)) => decided(table, test, &request, found),
    };
    let taken = route.map(|index| &table.routes[index]);
    let taken_name = taken.map_or("no route", |route| &route.name);
    if let Some(wanted) = test.route.as_ref().filter(|wanted| *wanted != taken_name) {
        return Some(format!("takes {taken_name}, not {wanted}"));
    }
    if let Some(wanted) = &test.upstream {
        let targets = taken
            .map(|route| route.targets.as_slice())
            .unwrap_or_default();
        if !targets
            .iter()
            .any(|target| target.weight > 0 && upstreams[target.upstream].name == *wanted)
        {
            return Some(format!("does not reach the upstream {wanted}"));
        }
    }
    let decision = outcome.decision();
    if decision != test.decision {
        return Some(format!("is decided {decision}, not {}", test.decision));
    }
    let (status, location) = (outcome.status(), outcome.location());
    if test.status.is_some() && status != test.status {
        let status = status.map_or("that of the upstream".to_owned(), |status| {
            status.to_string()
        });
        return Some(format!("has the status {status}"));
    }
    if test.location.is_some() && location != test.location.as_deref() {
        return Some(format!("leads to {}", location.unwrap_or("no location")));
    }
    None
}

fn decided<'t>(
    table: &'t RouteTable,
    test: &RouteTest,
    request: &RouteRequest<'_>,
    found: RouteMatch,
) -> (Option<usize>, Outcome<'t>) {
    if let Some((outcome, route)) = Outcome::of_preflight(table, request, found) {
        return (route, outcome);
    }
    let caller = caller_for(&test.token);
    let variables = request.explained(true, test.client_address);
    let at = (found, request.path);
    let decision = decide(table, at, caller.as_ref(), test.client_address, &mut None);
    (found.route(), Outcome::of(table, &variables, &decision))
}

/// Looks up the route of a test.
///
/// # Errors
/// The target is not canonical, and no route accepts it.
pub(super) fn find<'t>(
    table: &RouteTable,
    test: &'t RouteTest,
) -> Result<(RouteRequest<'t>, RouteMatch), TargetFault> {
    let (method, target) = &test.request;
    let target = RequestTarget::parse_ambiguous(target.as_bytes())?;
    let request = RouteRequest {
        host: &test.host,
        path: target.path,
        query: target.query,
        method,
        headers: &test.headers,
    };
    Ok((request, table.find_target(&request, &target)?))
}

pub(crate) fn caller_for(token: &TestToken) -> Option<Caller> {
    let issuer = Arc::from("test");
    match token {
        TestToken::None => None,
        TestToken::User {
            subject,
            groups,
            scopes,
            claims,
        } => Some(Caller::User(Arc::new(User {
            issuer,
            subject: subject.as_str().into(),
            username: subject.as_str().into(),
            client_id: "test".into(),
            scopes: scopes.as_slice().into(),
            groups: groups.as_slice().into(),
            expires_at: i64::MAX,
            claims: claims
                .iter()
                .map(|(name, value)| (name.as_str().into(), value.clone()))
                .collect(),
        }))),
        TestToken::Service { name, scopes } => Some(Caller::Service(Arc::new(Service {
            issuer,
            subject: name.as_str().into(),
            service_id: name.as_str().into(),
            scopes: scopes.as_slice().into(),
            expires_at: i64::MAX,
        }))),
    }
}
