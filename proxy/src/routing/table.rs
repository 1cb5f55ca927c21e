//! The route table.

use crate::config::{MethodSet, Route};
use crate::routing::router::{RouteIndex, RouteMatcher, RouteRequest};

/// Routes and how they are found; plain data, for requests as for tests of the configuration.
#[derive(Debug)]
pub(crate) struct RouteTable {
    pub(crate) routes: Vec<Route>,
    router: RouteMatcher,
}

/// Where a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteMatch {
    /// It takes this route.
    Route(RouteIndex),
    /// Its path is known, its method is not.
    MethodNotAllowed {
        /// The first of the routes with this path.
        route: RouteIndex,
        /// What is allowed there.
        allow: MethodSet,
        /// Whether that may be told to anyone.
        public: bool,
    },
    /// Nothing has this path.
    NotFound,
}

// === impl RouteTable ===

impl RouteTable {
    pub(crate) fn new(routes: Vec<Route>) -> Self {
        let router = RouteMatcher::new(routes.iter().map(|route| route.pattern.clone()).collect());
        Self { routes, router }
    }

    pub(crate) fn find(&self, request: &RouteRequest<'_>) -> RouteMatch {
        if let Some(route) = self.router.find(request) {
            return RouteMatch::Route(route);
        }
        let near = self.router.find_ignoring_method(request);
        match near.first() {
            Some(route) => RouteMatch::MethodNotAllowed {
                route: *route,
                allow: self.router.allowed_methods(&near),
                public: near
                    .iter()
                    .all(|index| self.routes[*index].policy.is_public()),
            },
            None => RouteMatch::NotFound,
        }
    }
}
