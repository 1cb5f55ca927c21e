//! Decisions.

use postern_common::Code;
use postern_common::token::Caller;

use crate::routing::router::{Request, RouteIndex};
use crate::routing::table::{Found, Table};

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
