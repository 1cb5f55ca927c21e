//! Decisions.

use postern_common::Code;
use postern_common::token::Caller;

use crate::routing::router::{RouteIndex, RouteRequest};
use crate::routing::table::{RouteMatch, RouteTable};

/// What a configuration decides about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteDecision {
    /// The route, if there is one.
    pub(crate) route: Option<RouteIndex>,
    /// `Ok` to let it through.
    pub(crate) outcome: Result<(), Code>,
}

/// Decides as the gateway does, with `caller` standing for a token that has been verified.
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
                    .or_else(|code| policy.is_audit_only().then_some(()).ok_or(code)),
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
