//! The route matcher.
//!
//! Precedence: among all routes whose conditions (host, path, method, header fields, query) match,
//! the most specific one is used. Routes are compared by:
//!
//! 1. host: exact name, then subdomain patterns (longer suffix first), then no host;
//! 2. path, segment by segment from the left: literal, then `{param}`, then `*`;
//! 3. the number of header and query conditions, more first;
//! 4. the order in the file.
//!
//! Matching walks a trie, so that its cost depends on the length of the path and not on the number
//! of routes.

use http::HeaderMap;

use crate::config::{MatchCondition, MethodSet, RoutePattern};
use crate::routing::trie::HostTries;

/// The position of a route in the configuration.
pub type RouteIndex = usize;

/// The parts of a request that routes match.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The `Host` value, with or without a port.
    pub host: &'a str,
    /// The canonical path.
    pub path: &'a str,
    /// The query without the `?`.
    pub query: Option<&'a str>,
    /// The method.
    pub method: &'a str,
    /// The header fields.
    pub headers: &'a HeaderMap,
}

/// An index of route patterns.
#[derive(Debug)]
pub struct RouteMatcher {
    patterns: Vec<RoutePattern>,
    hosts: HostTries,
}

// === impl RouteRequest ===

impl<'a> RouteRequest<'a> {
    /// Returns the same request with another method.
    #[must_use]
    pub fn with_method(self, method: &'a str) -> Self {
        Self { method, ..self }
    }
}

// === impl RouteMatcher ===

impl RouteMatcher {
    /// Builds the index. The order of the patterns is the order of the file.
    #[must_use]
    pub fn new(patterns: Vec<RoutePattern>) -> Self {
        let mut hosts = HostTries::default();
        for (index, pattern) in patterns.iter().enumerate() {
            hosts.insert(index, pattern);
        }
        hosts.sort_leaves(&patterns);
        Self { patterns, hosts }
    }

    /// Returns whether a route accepts requests for this host.
    #[must_use]
    pub fn accepts_host(&self, host: &str) -> bool {
        self.hosts.accepts_host(host)
    }

    /// Returns the most specific route that matches.
    #[must_use]
    pub fn find(&self, request: &RouteRequest<'_>) -> Option<RouteIndex> {
        let method = MethodSet::of(request.method)?;
        let accepts = |index: RouteIndex| {
            let pattern = &self.patterns[index];
            pattern.methods.contains(method) && pattern.matches_conditions(request)
        };
        self.hosts.walk(request, &mut |leaf| {
            leaf.iter().copied().find(|index| accepts(*index))
        })
    }

    /// Returns all routes that match apart from the method, most specific first.
    #[must_use]
    pub fn find_ignoring_method(&self, request: &RouteRequest<'_>) -> Vec<RouteIndex> {
        let mut found = Vec::new();
        let _exhausted: Option<RouteIndex> = self.hosts.walk(request, &mut |leaf| {
            found.extend(
                leaf.iter()
                    .copied()
                    .filter(|index| self.patterns[*index].matches_conditions(request)),
            );
            None
        });
        found
    }

    /// Returns the methods of these routes, for `Allow`.
    #[must_use]
    pub fn allowed_methods(&self, routes: &[RouteIndex]) -> MethodSet {
        routes.iter().fold(MethodSet::default(), |all, index| {
            all.union(self.patterns[*index].methods)
        })
    }
}

// === impl RoutePattern ===

impl RoutePattern {
    pub(crate) fn matches_conditions(&self, request: &RouteRequest<'_>) -> bool {
        let header_holds = |condition: &MatchCondition| {
            let mut values = request.headers.get_all(condition.name.as_str()).iter();
            values.any(|value| {
                condition
                    .value
                    .as_ref()
                    .is_none_or(|wanted| value.as_bytes() == wanted.as_bytes())
            })
        };
        let query_holds = |condition: &MatchCondition| {
            request.query.unwrap_or_default().split('&').any(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                name == condition.name
                    && condition
                        .value
                        .as_ref()
                        .is_none_or(|wanted| value == wanted)
            })
        };
        self.headers.iter().all(header_holds) && self.queries.iter().all(query_holds)
    }
}

#[cfg(test)]
mod tests;
