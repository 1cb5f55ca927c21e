//! Checks of a configuration before it goes live: its tests, and the files that it names.

use std::path::Path;
use std::sync::Arc;

use postern_common::Code;
use postern_common::decode::Object;
use postern_common::token::{Caller, Service, User};

use crate::config::{AccessLogTo, Config, Route, RouteTest, TestToken, Upstream};
use crate::live::{Found, Table};
use crate::route::{Request, RouteIndex};
use crate::{handover, target, tls};

/// Settings of the pools that stand in for those that neither the file nor the environment has: the
/// routes and the tests of a configuration can be checked without them.
pub const ASSUMED_POOLS: [(&str, &str); 4] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_assumed-actor"),
    ("IDP_ACTOR_CLIENT_ID", "assumed-actor"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_assumed-service"),
    ("IDP_SERVICE_CLIENT_ID", "assumed-service"),
];

/// Which of [`ASSUMED_POOLS`] a configuration was read with.
#[must_use]
pub fn assumed_settings(config: &Config) -> Vec<&'static str> {
    let (actor, service) = (&config.identity.actor, &config.identity.service);
    let values = [
        &actor.pool_id,
        &actor.client_id,
        &service.pool_id,
        &service.client_id,
    ];
    let pairs = ASSUMED_POOLS.iter().zip(values);
    pairs
        .filter_map(|((name, assumed), value)| (value == assumed).then_some(*name))
        .collect()
}

/// Notes every file that a configuration names and the gateway could not start with, at the line
/// that names it.
pub fn check_files(root: &Object<'_>, config: &Config) {
    // With other mistakes the positions of the lists are not those of the file.
    if !root.is_good() {
        return;
    }
    for (at, listen) in config.listen.iter().enumerate() {
        for (key, wrong) in listen.tls.as_ref().map(tls::check).unwrap_or_default() {
            root.fail_at(&format!("listen.{at}.tls{key}"), "unreadable_file", wrong);
        }
    }
    for upstream in &config.upstreams {
        for (key, wrong) in upstream
            .tls
            .as_ref()
            .map(tls::check_upstream)
            .unwrap_or_default()
        {
            root.fail_at(
                &format!("upstream.{}.tls{key}", upstream.name),
                "unreadable_file",
                wrong,
            );
        }
    }
    if let Some(wrong) = config.handover.as_deref().and_then(handover::check_folder) {
        root.fail_at("handover.socket", "unsafe_folder", wrong);
    }
    if let AccessLogTo::File(path) = &config.access_log.to
        && let Some(wrong) = missing_folder(path)
    {
        root.fail_at("access_log.to", "unreadable_file", wrong);
    }
}

/// Whether the folder of a file that is going to be written is there.
fn missing_folder(path: &Path) -> Option<String> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())?;
    (!folder.is_dir()).then(|| format!("{}: there is no such folder", folder.display()))
}

/// Runs the tests of a file that is good otherwise, and notes those that fail at their lines. The
/// routes come back.
pub(crate) fn run_tests(
    root: &Object<'_>,
    routes: Vec<Route>,
    upstreams: &[Upstream],
    tests: &[RouteTest],
) -> Vec<Route> {
    if tests.is_empty() || !root.is_good() {
        return routes;
    }
    let table = Table::new(routes);
    for (at, test) in tests.iter().enumerate() {
        if let Some(wrong) = outcome(&table, upstreams, test) {
            let detail = format!("test \"{} {}\": {wrong}", test.method, test.target);
            root.fail_at(&format!("test.{at}"), "test_failed", detail);
        }
    }
    table.routes
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
                Some(caller) => policy
                    .decide(caller)
                    .or_else(|code| policy.is_audit_only().then_some(()).ok_or(code)),
            };
            Decision {
                route: Some(route),
                outcome,
            }
        }
        (Found::Method { public: false, .. } | Found::Nothing, None) => Decision {
            route: None,
            outcome: Err(Code::AuthenticationRequired),
        },
        (Found::Method { .. }, _) => Decision {
            route: None,
            outcome: Err(Code::MethodNotAllowed),
        },
        (Found::Nothing, Some(_)) => Decision {
            route: None,
            outcome: Err(Code::NotFound),
        },
    }
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
            (
                decision.route,
                decision.outcome.err().map_or("allow", Code::as_str),
            )
        }
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
    (code != test.decision).then(|| format!("is decided {code}, not {}", test.decision))
}

/// The caller that a test's token stands for.
pub(crate) fn caller_of(token: &TestToken) -> Option<Caller> {
    let issuer = Arc::from("test");
    match token {
        TestToken::None => None,
        TestToken::User {
            groups,
            scopes,
            claims,
        } => Some(Caller::User(Arc::new(User {
            issuer,
            subject: "test".into(),
            username: "test".into(),
            client_id: "test".into(),
            scopes: scopes.as_slice().into(),
            groups: groups.as_slice().into(),
            expires_at: i64::MAX,
            claims: claims
                .iter()
                .map(|(name, value)| (name.as_str().into(), value.clone()))
                .collect(),
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
