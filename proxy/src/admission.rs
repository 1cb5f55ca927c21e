//! Admission: everything that decides whether a request is forwarded.
//!
//! - **Enters:** a checked head and a [`RequestContext`].
//! - **Leaves:** the context with route, caller and rate limit status; or a response that has been
//!   written (rejection, redirect, fixed response, CORS preflight, `OPTIONS *`,
//!   ACME challenge).
//! - **May depend on:** [`crate::routing`], [`crate::api_keys`], [`crate::certificates`],
//!   [`crate::external_authorization`], [`crate::rate_limiter`], [`crate::downstream`],
//!   [`crate::message`], [`crate::state`], [`crate::telemetry`] and [`crate::config`].

mod acme_challenge;
mod answer;
pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod credentials;
pub(crate) mod early_ends;
mod external;
pub(crate) mod header_changes;
mod problem_page;
pub(crate) mod rate_limits;
pub(crate) mod rejection;
pub(crate) mod report_only;
pub(crate) mod response_headers;
mod server_options;

use std::sync::Arc;

use pingora_core::Result;
use pingora_proxy::Session;

use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Admits the request, or answers it. Returns whether it was answered.
pub(crate) async fn admit_or_answer(
    state: &GatewayState,
    client: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    rate_limits::identify_client(client, ctx);
    if let Some(challenges) = &state.acme_challenges
        && acme_challenge::answer(state, challenges, client, ctx).await?
    {
        return Ok(true);
    }
    if server_options::answer(state, client, ctx).await? {
        return Ok(true);
    }
    authorize::start_trace_span(state, &client.req_header().headers, ctx);
    if answer::redirect_to_https(state, client, ctx).await? {
        return Ok(true);
    }
    let config = Arc::clone(&ctx.config);
    let taken = match &config.api_key_config {
        Some(places) => credentials::take_api_key(client.req_header_mut(), places, ctx),
        None => Ok(()),
    };
    let routed = taken.and_then(|()| authorize::route(client.req_header(), &config.route_table));
    let route = routed.as_ref().ok().and_then(|routed| routed.found.route());
    let route = route.map(|index| &config.route_table.routes[index]);
    let routed = match route.filter(|route| route.settings.websocket_token) {
        Some(route) => {
            credentials::take_subprotocol_token(client.req_header_mut(), route, ctx);
            authorize::route(client.req_header(), &config.route_table)
        }
        None => routed,
    };
    let problem = match routed {
        Ok(routed) => {
            if let Some(response) = cors::preflight_response(&routed, ctx)? {
                cors::answer_preflight(state, client, response, ctx).await?;
                return Ok(true);
            }
            authorize::authorize(state, client, &routed, ctx)
                .await
                .err()
        }
        // Rejected paths count as rejected heads do.
        Err(problem) => rate_limits::check_address(state, ctx)
            .err()
            .or(Some(problem)),
    };
    match problem {
        None => answer::answer_route(client, ctx).await,
        Some(problem) => {
            rejection::write_rejection(client, ctx, &problem).await?;
            Ok(true)
        }
    }
}
