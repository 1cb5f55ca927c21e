//! The route table.

use crate::config::{Methods, Route};
use crate::routing::router::{Request, RouteIndex, Router};

/// Routes and how they are found; plain data, for requests as for tests of the configuration.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) routes: Vec<Route>,
    router: Router,
}

/// Where a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It takes this route.
    Route(RouteIndex),
    /// Its path is known, its method is not.
    Method {
        /// The first of the routes with this path.
        route: RouteIndex,
        /// What is allowed there.
        allow: Methods,
        /// Whether that may be told to anyone.
        public: bool,
    },
    /// Nothing has this path.
    Nothing,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(routes: Vec<Route>) -> Self {
        let router = Router::new(routes.iter().map(|route| route.pattern.clone()).collect());
        Self { routes, router }
    }

    pub(crate) fn find(&self, request: &Request<'_>) -> Found {
        if let Some(route) = self.router.find(request) {
            return Found::Route(route);
        }
        let near = self.router.but_for_method(request);
        match near.first() {
            Some(route) => Found::Method {
                route: *route,
                allow: self.router.methods(&near),
                public: near
                    .iter()
                    .all(|index| self.routes[*index].policy.is_public()),
            },
            None => Found::Nothing,
        }
    }
}
