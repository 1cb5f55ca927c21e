//! Tests of the configuration: what it would do with a request, said before it does it with real ones.

use std::sync::Arc;

use postern_common::Code;
use postern_common::exit::Exit;
use postern_common::token::{Caller, Service, User};

use crate::config::{Config, RouteTest, TestToken, Upstream};
use crate::live::{Found, Table};
use crate::route::{Request, RouteIndex};
use crate::target;

/// Runs the tests of a configuration.
///
/// # Errors
/// Status 64 with a line for each test that does not hold.
pub fn check(config: &Config) -> Result<(), Exit> {
    hold(&Table::new(config.routes.clone()), &config.upstreams, &config.tests)
}

/// What a configuration decides about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The route, if there is one.
    pub(crate) route: Option<RouteIndex>,
    /// `Ok` to let it through.
    pub(crate) outcome: Result<(), Code>,
}

/// Decides as the gateway does, with `caller` standing for a token that has been verified.
pub(crate) fn decide(table: &Table, request: &Request<'_>, caller: Option<&Caller>) -> Decision {
    match (table.find(request), caller) {
        (Found::Route(route), caller) => {
            let policy = &table.routes[route].policy;
            let outcome = match caller {
                _ if policy.is_public() => Ok(()),
                None => Err(Code::AuthenticationRequired),
                Some(caller) => {
                    policy.decide(caller).or_else(|code| policy.is_audit_only().then_some(()).ok_or(code))
                }
            };
            Decision { route: Some(route), outcome }
        }
        (Found::Method { public: false, .. } | Found::Nothing, None) => {
            Decision { route: None, outcome: Err(Code::AuthenticationRequired) }
        }
        (Found::Method { .. }, _) => Decision { route: None, outcome: Err(Code::MethodNotAllowed) },
        (Found::Nothing, Some(_)) => Decision { route: None, outcome: Err(Code::NotFound) },
    }
}

/// # Errors
/// As [`check`].
pub(crate) fn hold(table: &Table, upstreams: &[Upstream], tests: &[RouteTest]) -> Result<(), Exit> {
    let failed = tests.iter().filter_map(|test| {
        let wrong = outcome(table, upstreams, test)?;
        Some(format!("test \"{} {}\": {wrong}", test.method, test.target))
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(Exit::usage(failed.join("\n"))) }
}

fn outcome(table: &Table, upstreams: &[Upstream], test: &RouteTest) -> Option<String> {
    let (route, code) = match target::Target::parse(test.target.as_bytes()) {
        Err(_) => (None, Code::InvalidTarget.as_str()),
        Ok(target) => {
            let request = Request {
                host: &test.host,
                path: target.path,
                query: target.query,
                method: &test.method,
                headers: &test.headers,
            };
            let decision = decide(table, &request, caller_of(&test.token).as_ref());
            (decision.route, decision.outcome.err().map_or("allow", Code::as_str))
        }
    };
    let taken = route.map(|index| &table.routes[index]);
    let taken_name = taken.map_or("no route", |route| &route.name);
    if let Some(wanted) = test.route.as_ref().filter(|wanted| *wanted != taken_name) {
        return Some(format!("takes {taken_name}, not {wanted}"));
    }
    if let Some(wanted) = &test.upstream {
        let targets = taken.map(|route| route.targets.as_slice()).unwrap_or_default();
        if !targets.iter().any(|target| target.weight > 0 && upstreams[target.upstream].name == *wanted) {
            return Some(format!("does not reach the upstream {wanted}"));
        }
    }
    (code != test.decision).then(|| format!("is decided {code}, not {}", test.decision))
}

/// The caller that a test's token stands for.
pub(crate) fn caller_of(token: &TestToken) -> Option<Caller> {
    let issuer = Arc::from("test");
    match token {
        TestToken::None => None,
        TestToken::User { groups, scopes, claims } => Some(Caller::User(Arc::new(User {
            issuer,
            subject: "test".into(),
            username: "test".into(),
            client_id: "test".into(),
            scopes: scopes.as_slice().into(),
            groups: groups.as_slice().into(),
            expires_at: i64::MAX,
            claims: claims.iter().map(|(name, value)| (name.as_str().into(), value.clone())).collect(),
        }))),
        TestToken::Service(name) => Some(Caller::Service(Arc::new(Service {
            issuer,
            subject: name.as_str().into(),
            service_id: name.as_str().into(),
            scopes: Arc::new([]),
            expires_at: i64::MAX,
        }))),
    }
}
