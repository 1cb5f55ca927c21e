//! Admission: everything that decides whether a request is forwarded.
//!
//! - **Enters:** a checked head and a [`ReceivedRequest`].
//! - **Leaves:** an [`Admission`], and the request with route, caller and rate limit status; or a
//!   response that has been written (rejection, redirect, fixed response, CORS preflight, `OPTIONS *`,
//!   ACME challenge).
//! - **May depend on:** [`crate::routing`], [`crate::api_keys`], [`crate::certificates`],
//!   [`crate::external_authorization`], [`crate::rate_limiter`], [`crate::upstream`], [`crate::downstream`],
//!   [`postern_http::message`], [`crate::state`], [`crate::telemetry`] and [`crate::config`].

mod answer;
pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod credentials;
pub(crate) mod early_ends;
mod external;
pub(crate) mod header_changes;
pub(crate) mod rate_limits;
pub(crate) mod rejection;
pub(crate) mod response_headers;

use std::sync::Arc;

use http::StatusCode;
use pingora::Result;
use pingora_proxy::Session;
use postern_core::Problem;
use postern_http::message::head;

use crate::admission::answer::Answer;
use crate::downstream::session_ext::SessionExt;
use crate::state::GatewayState;
use crate::state::request_context::{Admission, ReceivedRequest, RequestContext};

/// A response of the gateway itself, to a request that is not forwarded.
enum OwnResponse {
    Answer(Box<Answer>),
    Rejection(Problem),
}

impl From<Answer> for OwnResponse {
    fn from(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

impl From<Problem> for OwnResponse {
    fn from(problem: Problem) -> Self {
        Self::Rejection(problem)
    }
}

/// Admits the request to an upstream. Returns `None` if it was answered instead.
pub(crate) async fn admit_or_answer(
    state: &GatewayState,
    client: &mut Session,
    ctx: &mut RequestContext,
) -> Result<Option<Admission>> {
    match admit(state, client, &mut ctx.request).await {
        Ok(admission) => return Ok(Some(admission)),
        Err(OwnResponse::Answer(answer)) => answer.write(client, &ctx.request).await?,
        Err(OwnResponse::Rejection(problem)) => {
            rejection::write_rejection(client, ctx, &problem).await?;
        }
    }
    Ok(None)
}

async fn admit(
    state: &GatewayState,
    client: &mut Session,
    request: &mut ReceivedRequest,
) -> Result<Admission, OwnResponse> {
    rate_limits::identify_client(state, client, request);
    authorize::start_trace_span(state, &client.req_header().headers, request);
    let head = client.req_header();
    if head::is_server_options(head.method.as_str().as_bytes(), head.raw_path()) {
        rate_limits::check_address(state, request)?;
        return Err(Answer::new(StatusCode::NO_CONTENT).into());
    }
    if let Some(port) = client.https_redirect().filter(|_| !request.is_tls) {
        return Err(answer::to_https(state, head, port, request)?.into());
    }
    let config = Arc::clone(&request.config);
    let routes = &config.route_table;
    let mut credential = match &config.api_key_config {
        Some(places) => credentials::take_api_key(client.req_header_mut(), places)?,
        None => None,
    };
    let mut offers_token = false;
    let mut routed = authorize::route(client.req_header(), routes);
    let route = routed.as_ref().ok().and_then(|routed| routed.found.route());
    let route = route.map(|index| &routes.routes[index]);
    if let Some(route) = route.filter(|route| route.settings.websocket_token) {
        let token = credentials::take_subprotocol_token(client.req_header_mut(), route);
        offers_token = token.is_some();
        credential = credential.or(token);
        routed = authorize::route(client.req_header(), routes);
    }
    let routed = match routed {
        Ok(routed) => routed,
        // Rejected paths count as rejected heads do.
        Err(problem) => {
            rate_limits::check_address(state, request)?;
            return Err(problem.into());
        }
    };
    if let Some(answer) = cors::preflight(&routed, request) {
        rate_limits::check_address(state, request)?;
        return Err(answer.into());
    }
    let (index, added_headers) =
        authorize::authorize(state, client, &config, &routed, credential, request).await?;
    match &routes.routes[index].answer {
        Some(answer) => Err(Answer::of_route(answer, client.req_header(), request)?.into()),
        None => Ok(Admission {
            route: index,
            added_headers,
            offers_token,
        }),
    }
}
