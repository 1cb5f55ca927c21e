//! The decision on a request, for route tests and `explain`.

use postern_common::Code;
use postern_common::token::Caller;

use crate::routing::router::{RouteIndex, RouteRequest};
use crate::routing::table::{RouteMatch, RouteTable};

/// The decision of a configuration on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteDecision {
    /// The matched route, if any.
    pub(crate) route: Option<RouteIndex>,
    /// `Ok` to forward the request, or the problem code of the rejection.
    pub(crate) outcome: Result<(), Code>,
}

/// Decides on a request. `caller` is the caller of a verified token.
pub(crate) fn decide(
    table: &RouteTable,
    request: &RouteRequest<'_>,
    caller: Option<&Caller>,
) -> RouteDecision {
    match (table.find(request), caller) {
        (RouteMatch::Route(route), caller) => {
            let policy = &table.routes[route].policy;
            let outcome = match caller {
                _ if policy.is_public() => Ok(()),
                None => Err(Code::AuthenticationRequired),
                Some(caller) => policy
                    .decide(caller)
                    .or_else(|code| policy.is_report_only().then_some(()).ok_or(code)),
            };
            RouteDecision {
                route: Some(route),
                outcome,
            }
        }
        (RouteMatch::MethodNotAllowed { public: false, .. } | RouteMatch::NotFound, None) => {
            RouteDecision {
                route: None,
                outcome: Err(Code::AuthenticationRequired),
            }
        }
        (RouteMatch::MethodNotAllowed { .. }, _) => RouteDecision {
            route: None,
            outcome: Err(Code::MethodNotAllowed),
        },
        (RouteMatch::NotFound, Some(_)) => RouteDecision {
            route: None,
            outcome: Err(Code::NotFound),
        },
    }
}
