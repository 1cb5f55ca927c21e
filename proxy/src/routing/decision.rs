//! The decision on a request: one function for the request pipeline, route tests and `explain`.

use std::net::IpAddr;

use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use postern_core::token::Caller;
use postern_core::{Code, Problem};

use crate::config::AccessList;
use crate::routing::router::RouteRequest;
use crate::routing::table::{RouteMatch, RouteTable};

/// The decision on a request.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// `Err` is the rejection.
    pub(crate) result: Result<(), Problem>,
    /// Whether an access list in report-only mode would have rejected the request.
    pub(crate) is_address_reported: bool,
    /// The problem code with which a policy in report-only mode would have rejected it.
    pub(crate) reported_policy: Option<Code>,
}

impl Decision {
    /// Returns the code with which the first check in report-only mode would have rejected the
    /// request.
    pub(crate) fn report_only_code(&self) -> Option<Code> {
        match self.is_address_reported {
            true => Some(Code::AddressNotAllowed),
            false => self.reported_policy,
        }
    }
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
    let route = table.find(&request.with_method(method)).route();
    (route.is_some() || found.route().is_none()).then_some((method, route))
}

/// Decides on the request of a route lookup with its path. `caller` is the caller of a verified token,
/// `address` that of the client. The access list is evaluated after authentication, so that an address that
/// it refuses does not learn which paths exist.
pub(crate) fn decide(
    table: &RouteTable,
    (found, path): (RouteMatch, &str),
    caller: Option<&Caller>,
    address: Option<IpAddr>,
) -> Decision {
    let mut decision = Decision {
        result: Ok(()),
        is_address_reported: false,
        reported_policy: None,
    };
    decision.result = check(table, (found, path), caller, address, &mut decision);
    decision
}

/// Applies the checks in their order, and records what those in report-only mode refuse.
fn check(
    table: &RouteTable,
    (found, path): (RouteMatch, &str),
    caller: Option<&Caller>,
    address: Option<IpAddr>,
    decision: &mut Decision,
) -> Result<(), Problem> {
    let is_public = is_public(table, found);
    if caller.is_none() && !is_public {
        return Err(Code::AuthenticationRequired.into());
    }
    if let Some(list) = access_list(table, found)
        && !list.accepts(address)
    {
        if !list.is_report_only() {
            return Err(Code::AddressNotAllowed.into());
        }
        decision.is_address_reported = true;
    }
    let policy = match found {
        RouteMatch::Route(route) => &table.routes[route].policy,
        RouteMatch::MethodNotAllowed { allow, .. } => {
            return Err(Problem::method_not_allowed(allow.allow()));
        }
        RouteMatch::NotFound => return Err(Code::NotFound.into()),
    };
    match caller
        .filter(|_| !is_public)
        .map(|caller| policy.decide(caller, path))
    {
        None | Some(Ok(())) => Ok(()),
        Some(Err(code)) if policy.is_report_only() => {
            decision.reported_policy = Some(code);
            Ok(())
        }
        Some(Err(code)) => Err(code.into()),
    }
}
