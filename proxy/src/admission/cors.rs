//! Cross-origin rules (the Fetch standard's CORS protocol).

use std::sync::atomic::Ordering;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_METHOD,
    ORIGIN,
};
use http::{HeaderMap, Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;

use crate::admission::{authorize, rate_limits, rejection};
use crate::config::CorsPolicy;
use crate::config::MethodSet;
use crate::downstream::client_exchange::ClientExchange;
use crate::message::target::RequestTarget;
use crate::routing::router::RouteRequest;
use crate::routing::table::RouteMatch;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Fields of an answer that scripts may read, besides those that they always may.
const EXPOSED_HEADERS: &str =
    "Location, RateLimit, RateLimit-RoutePolicy, Retry-After, WWW-Authenticate, X-RouteRequest-Id";

/// Answers a preflight where there are rules for it: browsers send no token with one. Whether it
/// did.
pub(crate) async fn preflight(
    state: &GatewayState,
    client: &mut impl ClientExchange,
    ctx: &mut RequestContext,
) -> Result<bool> {
    if client.request().method != Method::OPTIONS {
        return Ok(false);
    }
    let Some(mut response) = preflight_response(client, ctx)? else {
        return Ok(false);
    };
    if let Err(problem) = rate_limits::check_address(state, ctx) {
        rejection::write_rejection(client, ctx, &problem).await?;
        return Ok(true);
    }
    if state.is_draining.load(Ordering::Relaxed) {
        client.disable_keep_alive();
    }
    response.insert_header("X-RouteRequest-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(response, true).await?;
    client.write_body(None, true).await?;
    Ok(true)
}

/// The answer to a preflight; without permission where the origin has none, which is all that a
/// browser asks.
fn preflight_response(
    client: &impl ClientExchange,
    ctx: &mut RequestContext,
) -> Result<Option<ResponseHeader>> {
    let head = client.request();
    let wanted = head
        .headers
        .get(ACCESS_CONTROL_REQUEST_METHOD)
        .and_then(|method| method.to_str().ok());
    let (Ok(target), Some(method), Some(_)) = (
        RequestTarget::parse(head.raw_path()),
        wanted,
        head.headers.get(ORIGIN),
    ) else {
        return Ok(None);
    };
    let request = |method| RouteRequest {
        host: authorize::request_authority(head),
        path: target.path,
        query: target.query,
        method,
        headers: &head.headers,
    };
    let live = &ctx.config;
    let (route, methods) = match live.route_table.find(&request(method)) {
        RouteMatch::Route(route) => (
            Some(route),
            Some(live.route_table.routes[route].pattern.methods),
        ),
        // An upstream that takes OPTIONS speaks for itself.
        RouteMatch::MethodNotAllowed { .. } | RouteMatch::NotFound
            if matches!(
                live.route_table.find(&request("OPTIONS")),
                RouteMatch::Route(_)
            ) =>
        {
            return Ok(None);
        }
        // So that a page can read why it was refused; whether there is such a path is not told.
        RouteMatch::MethodNotAllowed { .. } | RouteMatch::NotFound => (None, MethodSet::of(method)),
    };
    let Some(cors) = policy_for(ctx, route) else {
        return Ok(None);
    };
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(8))?;
    if let (true, Some(methods)) = (
        append_allow_headers(cors, &head.headers, &mut response)?,
        methods,
    ) {
        response.insert_header("Access-Control-Allow-MethodSet", methods.to_string())?;
        response.insert_header("Access-Control-Allow-Headers", cors.headers.join(", "))?;
        response.insert_header("Access-Control-Max-Age", cors.max_age.as_secs())?;
    }
    ctx.has_canonical_target = true;
    ctx.route = route;
    Ok(Some(response))
}

/// The rules of a route, or those of requests that no route takes.
fn policy_for(ctx: &RequestContext, route: Option<usize>) -> Option<&CorsPolicy> {
    match route {
        Some(route) => ctx.config.route_table.routes[route].cors.as_deref(),
        None => ctx.config.cors.as_deref(),
    }
}

/// Lets the page that asked read the answer, where the rules say so. What an upstream says of it
/// does not count there.
pub(crate) fn apply_headers(
    ctx: &RequestContext,
    request: &HeaderMap,
    response: &mut ResponseHeader,
) -> Result<()> {
    let Some(cors) = policy_for(ctx, ctx.route) else {
        return Ok(());
    };
    response.remove_header(&ACCESS_CONTROL_ALLOW_ORIGIN);
    response.remove_header(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
    append_allow_headers(cors, request, response).map(|_| ())
}

fn append_allow_headers(
    cors: &CorsPolicy,
    request: &HeaderMap,
    response: &mut ResponseHeader,
) -> Result<bool> {
    // Without an Origin as well: a cache must not keep that answer for a page.
    response.append_header("Vary", "Origin")?;
    let Some(origin) = request
        .get(ORIGIN)
        .filter(|origin| cors.allows(origin.as_bytes()))
    else {
        return Ok(false);
    };
    response.insert_header("Access-Control-Allow-Origin", origin)?;
    response.insert_header("Access-Control-Expose-Headers", EXPOSED_HEADERS)?;
    Ok(true)
}
