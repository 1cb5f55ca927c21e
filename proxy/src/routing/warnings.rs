//! Warnings of `postern-proxy check` about settings that are valid and may be mistakes.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ahash::AHashMap;
use postern_core::token::Caller;

use crate::config::{AccessList, Config, PathPattern, PathSegment, UpstreamAddress};
use crate::config::{Route, RouteTarget, RouteTest, TestToken};
use crate::routing::difference::callers::{addresses, callers};
use crate::routing::difference::header_map;
use crate::routing::difference::request_space;
use crate::routing::route_tests;
use crate::routing::router::RouteRequest;
use crate::routing::table::RouteTable;

/// Maximum number of kinds of users of two routes that are compared.
const MAX_CALLERS: usize = 1000;

/// Maximum untested routes that have a warning each.
const MAX_UNTESTED: usize = 3;

/// Returns warnings: upstreams that no route uses or that lead to the gateway itself, routes that no
/// `[[test]]` selects, public routes that take requests which a protected route would take without
/// them (unless a test shows that this is meant), and routes that take other spellings of protected
/// paths.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let mut all = unused_upstreams(config);
    all.extend(loops(config));
    all.extend(untested_routes(config));
    all.extend(public_exceptions(config));
    all.extend(unprotected_spellings(config));
    all
}

fn unused_upstreams(config: &Config) -> Vec<String> {
    let used: HashSet<usize> = config
        .routes
        .iter()
        .flat_map(|route| {
            let mirror = route.mirror.iter().map(|mirror| mirror.upstream);
            let targets = route.targets.iter().map(|target| target.upstream);
            targets.chain(mirror)
        })
        .collect();
    let unused = config.upstreams.iter().enumerate();
    let unused = unused.filter(|(at, _)| !used.contains(at));
    unused
        .map(|(_, upstream)| format!("upstream.{}: no route uses it", upstream.name))
        .collect()
}

/// Returns the names of the routes that the tests select which `is_counted`.
fn tested_routes(config: &Config, is_counted: impl Fn(&RouteTest) -> bool) -> HashSet<String> {
    let table = RouteTable::new(config.routes.clone());
    let tests = config.tests.iter().filter(|test| is_counted(test));
    let selected = tests.filter_map(|test| {
        let index = route_tests::find(&table, test).ok()?.1.route()?;
        Some(table.routes[index].name.clone())
    });
    selected.collect()
}

fn untested_routes(config: &Config) -> Vec<String> {
    let tested = tested_routes(config, |_| true);
    let names = config.routes.iter().map(|route| route.name.as_str());
    let untested: Vec<&str> = names.filter(|name| !tested.contains(*name)).collect();
    if untested.len() > MAX_UNTESTED {
        let (count, all) = (untested.len(), config.routes.len());
        let first = untested[..MAX_UNTESTED].join(", ");
        return vec![format!(
            "no [[test]] selects {count} of {all} routes: {first}, …"
        )];
    }
    let each = untested.into_iter();
    each.map(|name| format!("route {name}: no [[test]] selects it"))
        .collect()
}

/// Returns upstreams whose address is a listener of the gateway.
fn loops(config: &Config) -> Vec<String> {
    let is_own = |address: &UpstreamAddress| {
        let ip = match address.host.as_str() {
            "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
            host => host.parse().ok(),
        };
        config.listen.iter().any(|listen| {
            let own = listen.address.ip();
            let is_this = |ip: IpAddr| ip == own || (own.is_unspecified() && ip.is_loopback());
            listen.address.port() == address.port && ip.is_some_and(is_this)
        })
    };
    let mut all = Vec::new();
    for upstream in &config.upstreams {
        for address in upstream.addresses.iter().filter(|it| is_own(it)) {
            let name = &upstream.name;
            all.push(format!(
                "upstream.{name}: {address} is a listener of the gateway itself"
            ));
        }
    }
    all
}

/// Returns public routes within a protected one, unless a `[[test]]` without credentials selects them.
fn public_exceptions(config: &Config) -> Vec<String> {
    let mut all = Vec::new();
    let confirmed = tested_routes(config, |test| test.token == TestToken::None);
    let routes = &config.routes;
    let public = routes.iter().filter(|route| route.policy.is_public());
    for public in public.filter(|route| !confirmed.contains(&route.name)) {
        let shadowed = routes.iter().find(|route| {
            !route.policy.is_public()
                && route.pattern.methods.contains(public.pattern.methods)
                && (route.pattern.hosts.is_empty() || route.pattern.hosts == public.pattern.hosts)
                && covers(&route.pattern.path, &public.pattern.path)
        });
        if let Some(shadowed) = shadowed {
            all.push(format!(
                "route {}: is public, and takes requests that the protected route {} would take; if this is \
                 meant, add a [[test]] of it without a token",
                public.name, shadowed.name
            ));
        }
    }
    all
}

/// Returns whether every path of `narrow` is one of `wide`.
fn covers(wide: &PathPattern, narrow: &PathPattern) -> bool {
    let is_long_enough = match (wide.prefix, narrow.prefix) {
        (true, _) => wide.segments.len() <= narrow.segments.len(),
        (false, false) => wide.segments.len() == narrow.segments.len(),
        (false, true) => false,
    };
    let covers_segment = |(at, narrow): (usize, &PathSegment)| match narrow {
        PathSegment::Literal(text) => wide.accepts(at, text),
        PathSegment::Param(_) => !matches!(wide.segments.get(at), Some(PathSegment::Literal(_))),
    };
    is_long_enough
        && (wide.ignore_case || !narrow.ignore_case)
        && narrow.segments.iter().enumerate().all(covers_segment)
}

/// Returns for each protected route the first route that takes, with less protection, a path which
/// their upstream may read as one of the protected route: in another case, with or without a final
/// slash, or the path above its `/*`.
fn unprotected_spellings(config: &Config) -> Vec<String> {
    let table = RouteTable::new(config.routes.clone());
    let mut spellings = Spellings::new();
    let segments = config
        .routes
        .iter()
        .flat_map(|it| &it.pattern.path.segments);
    for segment in segments {
        if let PathSegment::Literal(text) = segment {
            let known = spellings.entry(text.to_ascii_lowercase()).or_default();
            known.insert(text);
        }
    }
    let routes = config.routes.iter();
    routes
        .filter_map(|it| unprotected_spelling(&table, &spellings, it))
        .collect()
}

/// The literal segments of all routes, by their lower case.
type Spellings<'c> = AHashMap<String, BTreeSet<&'c str>>;

/// Returns paths that an upstream may equate with another one, which the template matches.
fn equated(pattern: &PathPattern, spellings: &Spellings<'_>) -> Vec<(String, String)> {
    let path = example(pattern, str::to_owned);
    let known = |literal: &str| spellings.get(&literal.to_ascii_lowercase());
    let mut all = vec![path.to_ascii_uppercase()];
    for at in 0..spellings.values().map(BTreeSet::len).max().unwrap_or(0) {
        all.push(example(pattern, |literal| {
            let spelled = known(literal).and_then(|all| all.iter().nth(at));
            spelled.map_or(literal, |it| *it).to_owned()
        }));
    }
    all.push(match path.strip_suffix('/') {
        Some(path) => path.to_owned(),
        None => format!("{path}/"),
    });
    let mut all: Vec<_> = all.into_iter().map(|it| (it, path.clone())).collect();
    if let (true, Some(above)) = (pattern.prefix, path.strip_suffix("/x")) {
        let (above, below) = (above.to_owned(), format!("{above}/"));
        all.extend([(above.clone(), below.clone()), (below, above)]);
    }
    all.retain(|(other, path)| other != path && !other.is_empty() && !path.is_empty());
    all
}

fn unprotected_spelling(
    table: &RouteTable,
    spellings: &Spellings<'_>,
    protected: &Route,
) -> Option<String> {
    let (host, headers, query) = request_space::fields_of(&protected.pattern);
    let headers = header_map(&headers);
    let methods = protected.pattern.methods;
    let equated = equated(&protected.pattern.path, spellings);
    let requests = equated
        .iter()
        .flat_map(|paths| methods.names().map(move |method| (paths, method)));
    for ((other, path), method) in requests {
        let request = RouteRequest {
            host: &host,
            path: other,
            query: Some(&query),
            method,
            headers: &headers,
        };
        let found = table.find(&request).route().map(|at| &table.routes[at]);
        // Of these there is another warning.
        let is_exception =
            |it: &Route| it.policy.is_public() && covers(&protected.pattern.path, &it.pattern.path);
        let found = found.filter(|it| it.name != protected.name && !is_exception(it));
        if let Some(found) = found.filter(|it| is_weaker(it, protected, other)) {
            return Some(format!(
                "route {}: takes {method} {other}, which an upstream may read as {path} of the route {}, \
                 with less protection",
                found.name, protected.name
            ));
        }
    }
    None
}

/// Returns a path that the template matches, with literals in another spelling.
fn example(pattern: &PathPattern, spell: impl Fn(&str) -> String) -> String {
    let segments = pattern.segments.iter().map(|segment| match segment {
        PathSegment::Literal(text) => format!("/{}", spell(text)),
        PathSegment::Param(_) => "/x".to_owned(),
    });
    let below = if pattern.prefix { "/x" } else { "" };
    segments.collect::<String>() + below
}

/// Returns whether the same upstream gets requests from `route` that `protected` would refuse.
fn is_weaker(route: &Route, protected: &Route, path: &str) -> bool {
    let is_shared = |target: &RouteTarget| {
        let mut others = protected.targets.iter();
        others.any(|other| other.upstream == target.upstream)
    };
    if !route.targets.iter().any(is_shared) {
        return false;
    }
    let accepts = |route: &Route, caller: Option<&Caller>| {
        let is_accepted = |it| route.settings.report_only || route.policy.decide(it, path).is_ok();
        route.policy.is_public() || caller.is_some_and(is_accepted)
    };
    let policies = [Some(&protected.policy), Some(&route.policy)];
    let callers = callers(policies, path, MAX_CALLERS).unwrap_or_default();
    let mut callers = callers.iter().map(route_tests::caller_for);
    let enforced = [protected, route].map(|route| {
        let settings = Some(&route.settings);
        settings.filter(|settings| !settings.report_only)
    });
    let [own_list, other_list] = enforced.map(|it| it?.access.as_deref());
    let is_wider = |own: &AccessList| {
        let mut addresses = addresses([Some(own), other_list]).into_iter();
        addresses.any(|it| {
            it.is_some() && !own.accepts(it) && other_list.is_none_or(|list| list.accepts(it))
        })
    };
    let [own, other] = enforced.map(|it| it?.authorize.as_deref().map(|check| &check.url));
    own_list.is_some_and(is_wider)
        || own.is_some() && own != other
        || callers.any(|it| accepts(route, it.as_ref()) && !accepts(protected, it.as_ref()))
}
