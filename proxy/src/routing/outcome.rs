//! The outcome of a request, as route tests and `explain` describe it.

use std::net::IpAddr;

use postern_core::{Code, Problem};

use crate::config::{RedirectTarget, Route, RouteAnswer};
use crate::routing::decision::preflighted;
use crate::routing::router::{RouteIndex, RouteRequest};
use crate::routing::table::{RouteMatch, RouteTable};
use crate::routing::variables::RequestVariables;

#[derive(Clone, Debug)]
pub(crate) enum Outcome<'t> {
    Forwarded,
    /// The gateway answers itself. Contains the location of a redirect.
    Answered(&'t RouteAnswer, Option<String>),
    /// The gateway answers a preflight request.
    Preflight,
    Rejected(Code),
}

impl<'t> Outcome<'t> {
    /// Returns the outcome of a preflight request that the gateway answers, and the route of the
    /// announced request if there is one.
    pub(crate) fn of_preflight(
        table: &RouteTable,
        request: &RouteRequest<'_>,
        found: RouteMatch,
    ) -> Option<(Self, Option<usize>)> {
        let (_, route) = preflighted(table, request, found)?;
        let has_cors = |route: &Route| route.settings.cors.is_some();
        // Without a route, the common policy answers, which exists if a route has one.
        let is_answered = match route {
            Some(route) => has_cors(&table.routes[route]),
            None => table.routes.iter().any(has_cors),
        };
        is_answered.then_some((Self::Preflight, route))
    }

    pub(crate) fn of(
        table: &'t RouteTable,
        variables: &RequestVariables<'_>,
        decision: &Result<RouteIndex, Problem>,
    ) -> Self {
        let route = match decision {
            Ok(route) => &table.routes[*route],
            Err(problem) => return Self::Rejected(problem.code()),
        };
        let Some(answer) = route.answer.as_deref() else {
            return Self::Forwarded;
        };
        let RouteAnswer::Redirect(redirect) = answer else {
            return Self::Answered(answer, None);
        };
        let location = RedirectTarget::location(variables.expand(redirect.to.template()));
        match location.and_then(|location| location.to_str().map(str::to_owned).ok()) {
            Some(location) => Self::Answered(answer, Some(location)),
            None => Self::Rejected(Code::Internal),
        }
    }

    /// Returns `allow`, `redirect`, `respond` or a problem code.
    pub(crate) fn decision(&self) -> &'static str {
        match self {
            Self::Forwarded => "allow",
            Self::Answered(answer, _) => answer.decision(),
            Self::Preflight => "respond",
            Self::Rejected(code) => code.as_str(),
        }
    }

    /// Returns the status of the gateway's own response; `None` if the upstream decides.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Forwarded => None,
            Self::Answered(answer, _) => Some(answer.status().as_u16()),
            Self::Preflight => Some(204),
            Self::Rejected(code) => Some(code.status().as_u16()),
        }
    }

    pub(crate) fn location(&self) -> Option<&str> {
        match self {
            Self::Answered(_, location) => location.as_deref(),
            Self::Forwarded | Self::Preflight | Self::Rejected(_) => None,
        }
    }
}

impl<'a> RouteRequest<'a> {
    /// Returns the variables of a request that is not received by a gateway: the request id and
    /// the upstream are unknown.
    pub(crate) fn explained(
        &self,
        is_tls: bool,
        client_address: Option<IpAddr>,
    ) -> RequestVariables<'a> {
        RequestVariables {
            request_id: uuid::Uuid::nil(),
            client_address,
            authority: self.host,
            path: self.path,
            query: self.query,
            method: self.method,
            is_tls,
            route: "",
            upstream: "",
            caller: None,
        }
    }
}
