//! Warnings of `postern-proxy check` about settings that are valid and may be mistakes.

use std::collections::HashSet;

use crate::config::{Config, PathPattern, PathSegment, Route, RouteTest};
use crate::message::target::RequestTarget;
use crate::routing::router::RouteRequest;
use crate::routing::table::RouteTable;

/// Returns warnings: upstreams that no route uses, routes that no `[[test]]` selects, and public routes
/// that take requests which a protected route would take without them.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let mut all = unused_upstreams(config);
    all.extend(untested_routes(config));
    all.extend(public_exceptions(&config.routes));
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

fn untested_routes(config: &Config) -> Vec<String> {
    let table = RouteTable::new(config.routes.clone());
    let selected = |test: &RouteTest| {
        let target = RequestTarget::parse(test.target.as_bytes()).ok()?;
        let request = RouteRequest {
            host: &test.host,
            path: target.path,
            query: target.query,
            method: &test.method,
            headers: &test.headers,
        };
        let index = table.find(&request).route()?;
        Some(table.routes[index].name.clone())
    };
    let tested: HashSet<String> = config.tests.iter().filter_map(selected).collect();
    let untested = config.routes.iter().map(|route| &route.name);
    untested
        .filter(|name| !tested.contains(*name))
        .map(|name| format!("route {name}: no [[test]] selects it"))
        .collect()
}

fn public_exceptions(routes: &[Route]) -> Vec<String> {
    let mut all = Vec::new();
    for public in routes.iter().filter(|route| route.policy.is_public()) {
        let shadowed = routes.iter().find(|route| {
            !route.policy.is_public()
                && route.pattern.methods.contains(public.pattern.methods)
                && (route.pattern.hosts.is_empty() || route.pattern.hosts == public.pattern.hosts)
                && covers(&route.pattern.path, &public.pattern.path)
        });
        if let Some(shadowed) = shadowed {
            all.push(format!(
                "route {}: is public, and takes requests that the protected route {} would take",
                public.name, shadowed.name
            ));
        }
    }
    all
}

/// Returns whether every path of `narrow` is one of `wide`.
fn covers(wide: &PathPattern, narrow: &PathPattern) -> bool {
    let lengths = match (wide.prefix, narrow.prefix) {
        (true, _) => wide.segments.len() <= narrow.segments.len(),
        (false, false) => wide.segments.len() == narrow.segments.len(),
        (false, true) => false,
    };
    let covers_segment = |(wide, narrow): (&PathSegment, &PathSegment)| match (wide, narrow) {
        (PathSegment::Param(_), _) => true,
        (PathSegment::Literal(wide), PathSegment::Literal(narrow)) => wide == narrow,
        (PathSegment::Literal(_), PathSegment::Param(_)) => false,
    };
    let mut pairs = wide.segments.iter().zip(&narrow.segments);
    lengths && pairs.all(covers_segment)
}
