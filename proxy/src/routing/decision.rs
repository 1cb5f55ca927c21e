//! The decision on a request: one function for the request pipeline, route tests and `explain`.

use postern_common::token::Caller;
use postern_common::{Code, Problem};

use crate::routing::table::{RouteMatch, RouteTable};

/// A request that is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// The problem code with which a report-only policy would have rejected it.
    pub(crate) report_only: Option<Code>,
}

/// Returns whether a request is decided without a caller, so that no token is verified. Whether a
/// path exists is disclosed to authenticated callers only.
pub(crate) fn is_public(table: &RouteTable, found: RouteMatch) -> bool {
    match found {
        RouteMatch::Route(route) => table.routes[route].policy.is_public(),
        RouteMatch::MethodNotAllowed { public, .. } => public,
        RouteMatch::NotFound => false,
    }
}

/// Decides on the request of a route lookup. `caller` is the caller of a verified token.
///
/// # Errors
/// The rejection.
pub(crate) fn decide(
    table: &RouteTable,
    found: RouteMatch,
    caller: Option<&Caller>,
) -> Result<Allowed, Problem> {
    let allowed = Allowed { report_only: None };
    let is_public = is_public(table, found);
    if caller.is_none() && !is_public {
        return Err(Code::AuthenticationRequired.into());
    }
    let policy = match found {
        RouteMatch::Route(route) => &table.routes[route].policy,
        RouteMatch::MethodNotAllowed { allow, .. } => {
            return Err(Problem::method_not_allowed(allow.to_string()));
        }
        RouteMatch::NotFound => return Err(Code::NotFound.into()),
    };
    match caller
        .filter(|_| !is_public)
        .map(|caller| policy.decide(caller))
    {
        None | Some(Ok(())) => Ok(allowed),
        Some(Err(code)) if policy.is_report_only() => Ok(Allowed {
            report_only: Some(code),
        }),
        Some(Err(code)) => Err(code.into()),
    }
}
