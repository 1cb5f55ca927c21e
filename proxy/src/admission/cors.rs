//! Cross-origin resource sharing (CORS protocol of the Fetch standard).

use std::sync::atomic::Ordering;

use http::header::{ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ORIGIN};
use http::{HeaderMap, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;

use crate::admission::authorize::RoutedRequest;
use crate::admission::{rate_limits, rejection};
use crate::config::CorsPolicy;
use crate::downstream::session_ext::SessionExt;
use crate::message::headers::{add_vary, is_token};
use crate::routing::decision::preflighted;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Response header fields that scripts may read in addition to the safelisted ones.
const EXPOSED_HEADERS: &str = "Allow, Content-Disposition, Deprecation, ETag, Link, Location, RateLimit, RateLimit-Policy, \
     Retry-After, WWW-Authenticate, X-Request-Id";

/// Writes the response to a preflight request; browsers send no token with it.
pub(crate) async fn answer_preflight(
    state: &GatewayState,
    client: &mut Session,
    mut response: ResponseHeader,
    ctx: &mut RequestContext,
) -> Result<()> {
    if let Err(problem) = rate_limits::check_address(state, ctx) {
        return rejection::write_rejection(client, ctx, &problem).await;
    }
    if state.is_draining.load(Ordering::Relaxed) {
        client.close_after_response();
    }
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(Box::new(response), true).await?;
    client.write_response_body(None, true).await
}

/// Builds the response to a preflight request, if it is one and a CORS policy applies. It contains
/// no permission if the origin is not allowed.
pub(crate) fn preflight_response(
    routed: &RoutedRequest<'_>,
    ctx: &mut RequestContext,
) -> Result<Option<ResponseHeader>> {
    let RoutedRequest { request, found } = routed;
    let table = &ctx.config.route_table;
    let Some((method, route)) = preflighted(table, request, *found) else {
        return Ok(None);
    };
    let methods = match route {
        Some(route) => Some(table.routes[route].pattern.methods.to_string()),
        // Allows pages to read the error response, without disclosing whether the path exists.
        None => is_token(method.as_bytes()).then(|| method.to_owned()),
    };
    let Some(cors) = policy_for(ctx, route) else {
        return Ok(None);
    };
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(8))?;
    if let (true, Some(methods)) = (
        append_allow_headers(cors, request.headers, &mut response)?,
        methods,
    ) {
        response.insert_header("Access-Control-Allow-Methods", methods)?;
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
        Some(route) => ctx.config.route_table.routes[route]
            .settings
            .cors
            .as_deref(),
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
    add_vary(response, "Origin")?;
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
    // Beside what the upstream exposes.
    response.append_header("Access-Control-Expose-Headers", EXPOSED_HEADERS)?;
    if !cors.exposed_headers.is_empty() {
        let own = cors.exposed_headers.join(", ");
        response.append_header("Access-Control-Expose-Headers", own)?;
    }
    Ok(true)
}
