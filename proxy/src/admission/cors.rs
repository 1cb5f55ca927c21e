//! Cross-origin resource sharing (CORS protocol of the Fetch standard).

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

/// Response header fields that scripts may read in addition to the safelisted ones.
const EXPOSED_HEADERS: &str =
    "Location, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id";

/// Answers a preflight request if a CORS policy applies; browsers send no token with it. Returns
/// whether it was answered.
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
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(response, true).await?;
    client.write_body(None, true).await?;
    Ok(true)
}

/// Builds the response to a preflight request. It contains no permission if the origin is not
/// allowed.
fn preflight_response(
    client: &impl ClientExchange,
    ctx: &mut RequestContext,
) -> Result<Option<ResponseHeader>> {
    let head = client.request();
    let requested_method = head
        .headers
        .get(ACCESS_CONTROL_REQUEST_METHOD)
        .and_then(|method| method.to_str().ok());
    let (Ok(target), Some(method), Some(_)) = (
        RequestTarget::parse(head.raw_path()),
        requested_method,
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
    let config = &ctx.config;
    let (route, methods) = match config.route_table.find(&request(method)) {
        RouteMatch::Route(route) => (
            Some(route),
            Some(config.route_table.routes[route].pattern.methods),
        ),
        // An upstream whose route includes OPTIONS answers itself.
        RouteMatch::MethodNotAllowed { .. } | RouteMatch::NotFound
            if matches!(
                config.route_table.find(&request("OPTIONS")),
                RouteMatch::Route(_)
            ) =>
        {
            return Ok(None);
        }
        // Allows pages to read the error response, without disclosing whether the path exists.
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
        response.insert_header("Access-Control-Allow-Methods", methods.to_string())?;
        response.insert_header("Access-Control-Allow-Headers", cors.headers.join(", "))?;
        response.insert_header("Access-Control-Max-Age", cors.max_age.as_secs())?;
    }
    ctx.has_canonical_target = true;
    ctx.route = route;
    Ok(Some(response))
}

/// Returns the policy of a route, or that of requests that match no route.
fn policy_for(ctx: &RequestContext, route: Option<usize>) -> Option<&CorsPolicy> {
    match route {
        Some(route) => ctx.config.route_table.routes[route].cors.as_deref(),
        None => ctx.config.cors.as_deref(),
    }
}

/// Sets the CORS headers of a response and removes those of the upstream.
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
    // Also without `Origin`, so that caches do not use the response for cross-origin requests.
    response.append_header("Vary", "Origin")?;
    let Some(origin) = request
        .get(ORIGIN)
        .filter(|origin| cors.allows(origin.as_bytes()))
    else {
        return Ok(false);
    };
    if cors.allows_any() {
        response.insert_header("Access-Control-Allow-Origin", "*")?;
    } else {
        response.insert_header("Access-Control-Allow-Origin", origin)?;
    }
    response.insert_header("Access-Control-Expose-Headers", EXPOSED_HEADERS)?;
    Ok(true)
}
