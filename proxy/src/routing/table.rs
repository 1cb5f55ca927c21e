//! The route table.

use postern_http::message::target::{RequestTarget, TargetFault};

use crate::config::{HostPattern, MethodSet, Route};
use crate::routing::router::{RouteIndex, RouteMatcher, RouteRequest};

/// The routes of a configuration and their index; plain data, for requests and route tests.
#[derive(Debug)]
pub(crate) struct RouteTable {
    pub(crate) routes: Vec<Route>,
    router: RouteMatcher,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RouteMatch {
    Route(RouteIndex),
    /// Routes match the path, but not the method.
    MethodNotAllowed {
        /// The most specific of these routes.
        route: RouteIndex,
        /// Their methods.
        allow: MethodSet,
        /// Whether all of them are public, so that the methods may be disclosed without
        /// authentication.
        public: bool,
    },
    NotFound,
}

impl RouteMatch {
    /// Returns the matching route, if any.
    pub(crate) fn route(self) -> Option<RouteIndex> {
        match self {
            Self::Route(route) => Some(route),
            Self::MethodNotAllowed { .. } | Self::NotFound => None,
        }
    }

    /// Returns the matching route or, if none has the method, the most specific one with the path.
    pub(crate) fn route_of_path(self) -> Option<RouteIndex> {
        match self {
            Self::Route(route) | Self::MethodNotAllowed { route, .. } => Some(route),
            Self::NotFound => None,
        }
    }
}

impl RouteTable {
    pub(crate) fn new(routes: Vec<Route>) -> Self {
        let router = RouteMatcher::new(routes.iter().map(|route| route.pattern.clone()).collect());
        Self { routes, router }
    }

    pub(crate) fn hosts(&self, found: RouteMatch) -> &[HostPattern] {
        match found.route_of_path() {
            Some(index) => &self.routes[index].pattern.hosts,
            None => &[],
        }
    }

    pub(crate) fn accepts_host(&self, host: &str) -> bool {
        self.router.hosts.accepts_host(host)
    }

    /// Looks up the route of a request with this target.
    ///
    /// # Errors
    /// The path is ambiguous, and its route does not accept that, or an upstream may read it as a path
    /// of another route or owner, whose policy it would bypass.
    pub(crate) fn find_target(
        &self,
        request: &RouteRequest<'_>,
        target: &RequestTarget<'_>,
    ) -> Result<RouteMatch, TargetFault> {
        let found = self.find(request);
        let Some(fault) = target.ambiguity else {
            return Ok(found);
        };
        let leads_elsewhere = |reading: &String| {
            let path = reading.as_str();
            let read = self.find(&RouteRequest { path, ..*request });
            read.route()
                .is_some_and(|other| found.route() != Some(other))
        };
        match found.route_of_path().map(|route| &self.routes[route]) {
            Some(route) if route.settings.ambiguous_paths => {
                let mut deciding = route.deciding_segments();
                match target.readings().iter().any(leads_elsewhere)
                    || !deciding.all(|at| target.is_read_alike(at))
                {
                    true => Err(TargetFault::OtherRoute),
                    false => Ok(found),
                }
            }
            Some(_) | None => Err(fault),
        }
    }

    pub(crate) fn find(&self, request: &RouteRequest<'_>) -> RouteMatch {
        if let Some(route) = self.router.find(request) {
            return RouteMatch::Route(route);
        }
        let near = self.router.find_ignoring_method(request);
        let Some(route) = near.first().copied() else {
            return RouteMatch::NotFound;
        };
        let mut near = near.iter().map(|index| &self.routes[*index]);
        let methods = near.clone().map(|it| it.pattern.methods);
        RouteMatch::MethodNotAllowed {
            route,
            allow: methods.fold(MethodSet::default(), MethodSet::union),
            public: near.all(|it| it.policy.is_public()),
        }
    }
}
