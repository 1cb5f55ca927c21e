//! The decision on a request: one function for the request pipeline, route tests and `explain`.

use std::net::IpAddr;

use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use postern_core::token::Caller;
use postern_core::{Code, Problem};

use crate::config::{AccessList, Route};
use crate::routing::router::{RouteIndex, RouteRequest};
use crate::routing::table::{RouteMatch, RouteTable};

/// Returns whether a request is decided without a caller, so that no token is verified. Whether a
/// path exists is disclosed to authenticated callers only.
pub(crate) fn is_public(table: &RouteTable, found: RouteMatch) -> bool {
    match found {
        RouteMatch::Route(route) => table.routes[route].policy.is_public(),
        RouteMatch::MethodNotAllowed { public, .. } => public,
        RouteMatch::NotFound => false,
    }
}

/// Returns the access list that applies to a request: that of its route or, if no route has its
/// method, of the most specific route with its path.
pub(crate) fn access_list(table: &RouteTable, found: RouteMatch) -> Option<&AccessList> {
    let route = found.route_of_path()?;
    table.routes[route].settings.access.as_deref()
}

/// Returns the method that a preflight request announces (CORS protocol of the Fetch standard), and
/// the route of the announced request if there is one. Returns `None` for other requests, and where
/// only the route of the preflight request itself exists: its upstream answers.
pub(crate) fn preflighted<'r>(
    table: &RouteTable,
    request: &RouteRequest<'r>,
    found: RouteMatch,
) -> Option<(&'r str, Option<usize>)> {
    let is_preflight = request.method == Method::OPTIONS && request.headers.contains_key(ORIGIN);
    let method = request.headers.get(ACCESS_CONTROL_REQUEST_METHOD);
    let method = method.filter(|_| is_preflight)?.to_str().ok()?;
    let route = table.find(&RouteRequest { method, ..*request }).route();
    (route.is_some() || found.route().is_none()).then_some((method, route))
}

/// Returns the verdict of a check of a route. A refusal by a route with `report_only` is reported
/// instead, and `None` is returned: the first code of a request, which would have ended it.
pub(crate) fn enforce<T>(
    route: &Route,
    verdict: Result<T, Problem>,
    reported: &mut Option<Code>,
) -> Result<Option<T>, Problem> {
    match verdict {
        Err(problem) if route.settings.report_only => {
            reported.get_or_insert(problem.code());
            Ok(None)
        }
        verdict => verdict.map(Some),
    }
}

/// Decides on the request of a route lookup with its path, and returns the route that it may use.
/// `caller` is the caller of a verified token, `address` that of the client. The access list is
/// evaluated after authentication, so that an address that it refuses does not learn which paths exist.
/// A missing caller is never only `reported`: without an identity there is nothing to forward.
pub(crate) fn decide(
    table: &RouteTable,
    (found, path): (RouteMatch, &str),
    caller: Option<&Caller>,
    address: Option<IpAddr>,
    reported: &mut Option<Code>,
) -> Result<RouteIndex, Problem> {
    let is_public = is_public(table, found);
    if caller.is_none() && !is_public {
        return Err(Code::AuthenticationRequired.into());
    }
    if let (Some(index), Some(list)) = (found.route_of_path(), access_list(table, found))
        && !list.accepts(address)
    {
        let refused = Err::<(), _>(Code::AddressNotAllowed.into());
        enforce(&table.routes[index], refused, reported)?;
    }
    let index = match found {
        RouteMatch::Route(route) => route,
        RouteMatch::MethodNotAllowed { allow, .. } => {
            return Err(Problem::method_not_allowed(allow.allow()));
        }
        RouteMatch::NotFound => return Err(Code::NotFound.into()),
    };
    let route = &table.routes[index];
    if let Some(caller) = caller.filter(|_| !is_public) {
        let verdict = route.policy.decide(caller, path);
        enforce(route, verdict.map_err(Problem::from), reported)?;
    }
    Ok(index)
}
