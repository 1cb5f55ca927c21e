//! The route matcher.
//!
//! Precedence: among all routes whose conditions (host, path, method, header fields, query) match,
//! the most specific one is used. Routes are compared by:
//!
//! 1. host: exact name, then subdomain patterns (longer suffix first), then no host;
//! 2. path, segment by segment from the left: literal, then `{param}`, then the end of the path,
//!    then `*`; of equal ones, that which does not ignore case;
//! 3. the number of header and query conditions, more first;
//! 4. the order in the file.
//!
//! Matching walks a trie, so that its cost depends on the length of the path and not on the number
//! of routes.

use std::borrow::Cow;
use std::cell::OnceCell;

use ahash::AHashSet;
use http::HeaderMap;
use postern_http::message::headers::is_same_folded;
use url::form_urlencoded;

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
    pub(super) hosts: HostTries,
}

/// The parameters of a query as upstreams decode it, each also with `None` for any value. Decoded
/// at the first look-up: many routes can have conditions, and a query many parameters.
#[derive(Debug, Default)]
pub(crate) struct QueryParameters<'q>(OnceCell<Parameters<'q>>);

type Parameters<'q> = AHashSet<(Cow<'q, str>, Option<Cow<'q, str>>)>;

impl RouteMatcher {
    /// Builds the index. The order of the patterns is the order of the file.
    #[must_use]
    pub fn new(patterns: Vec<RoutePattern>) -> Self {
        let mut hosts = HostTries::new(patterns.iter().any(|it| it.path.ignore_case));
        for (index, pattern) in patterns.iter().enumerate() {
            hosts.insert(index, pattern);
        }
        hosts.sort_leaves(&patterns);
        Self { patterns, hosts }
    }

    /// Returns the most specific route that matches.
    #[must_use]
    pub fn find(&self, request: &RouteRequest<'_>) -> Option<RouteIndex> {
        let method = MethodSet::of(request.method)?;
        let query = QueryParameters::default();
        let accepts = |index: RouteIndex| {
            let pattern = &self.patterns[index];
            pattern.methods.contains(method) && self.accepts(pattern, request, &query)
        };
        self.hosts.walk(request, &mut |leaf| {
            leaf.iter().copied().find(|index| accepts(*index))
        })
    }

    /// Returns all routes that match apart from the method, most specific first.
    #[must_use]
    pub fn find_ignoring_method(&self, request: &RouteRequest<'_>) -> Vec<RouteIndex> {
        let mut found = Vec::new();
        let query = QueryParameters::default();
        let _exhausted: Option<RouteIndex> = self.hosts.walk(request, &mut |leaf| {
            let accepts =
                |index: &RouteIndex| self.accepts(&self.patterns[*index], request, &query);
            found.extend(leaf.iter().copied().filter(accepts));
            None
        });
        found
    }

    /// Returns whether a pattern of a visited leaf matches, apart from the method.
    fn accepts<'r>(
        &self,
        pattern: &RoutePattern,
        request: &RouteRequest<'r>,
        query: &QueryParameters<'r>,
    ) -> bool {
        (!self.hosts.ignore_case || pattern.path.matches(request.path))
            && pattern.matches_conditions(request, query)
    }
}

impl RoutePattern {
    /// Returns whether the header and query conditions hold.
    pub(crate) fn matches_conditions<'r>(
        &self,
        request: &RouteRequest<'r>,
        query: &QueryParameters<'r>,
    ) -> bool {
        let header_holds = |condition: &MatchCondition| {
            request.headers.iter().any(|(name, value)| {
                let wanted = condition.value.as_deref().map(str::as_bytes);
                is_same_folded(name.as_str(), &condition.name)
                    && wanted.is_none_or(|wanted| wanted == value.as_bytes())
            })
        };
        self.headers.iter().all(header_holds)
            && self.queries.iter().all(|it| query.contains(request, it))
    }
}

impl<'q> QueryParameters<'q> {
    fn contains(&self, request: &RouteRequest<'q>, wanted: &MatchCondition) -> bool {
        let query = request.query.unwrap_or_default();
        let value = wanted.value.as_deref().map(Cow::Borrowed);
        let parameters = self.0.get_or_init(|| Self::decode(query));
        parameters.contains(&(Cow::Borrowed(&*wanted.name), value))
    }

    /// Decodes a query. Upstreams read `+` as a space (WHATWG URL, section 5.1) or as itself
    /// (RFC 3986): both are there.
    fn decode(query: &'q str) -> Parameters<'q> {
        let mut all = Parameters::default();
        let mut add = |(name, value): (Cow<'q, str>, Cow<'q, str>)| {
            all.insert((name.clone(), None));
            all.insert((name, Some(value)));
        };
        form_urlencoded::parse(query.as_bytes()).for_each(&mut add);
        if query.contains('+') {
            let literal = query.replace('+', "%2B");
            let owned = |text: Cow<'_, str>| -> Cow<'q, str> { Cow::Owned(text.into_owned()) };
            let literal = form_urlencoded::parse(literal.as_bytes());
            literal.for_each(|(name, value)| add((owned(name), owned(value))));
        }
        all
    }
}

#[cfg(test)]
mod tests;
