//! Cross-origin resource sharing (CORS protocol of the Fetch standard).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE, ORIGIN,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use pingora::Result;
use pingora::http::ResponseHeader;
use postern_http::message::headers::{add_vary, is_token};

use crate::admission::answer::Answer;
use crate::admission::authorize::RoutedRequest;
use crate::config::CorsPolicy;
use crate::routing::decision::preflighted;
use crate::routing::router::RouteIndex;
use crate::state::request_context::ReceivedRequest;

/// Response header fields that scripts may read in addition to the safelisted ones.
const EXPOSED_HEADERS: &str = "Allow, Content-Disposition, Deprecation, ETag, Link, Location, Retry-After, \
     WWW-Authenticate, X-Request-Id";

/// Returns the answer to a preflight request, if it is one and a CORS policy applies; browsers send no
/// token with it. It contains no permission if the origin is not allowed.
pub(super) fn preflight(
    routed: &RoutedRequest<'_>,
    received: &mut ReceivedRequest,
) -> Option<Answer> {
    let RoutedRequest { request, found } = routed;
    let table = &received.config.route_table;
    let (method, route) = preflighted(table, request, *found)?;
    let methods = match route {
        Some(route) => Some(table.routes[route].pattern.methods.to_string()),
        // Allows pages to read the error response, without disclosing whether the path exists.
        None => is_token(method.as_bytes()).then(|| method.to_owned()),
    };
    let cors = policy_for(received, route)?;
    let mut answer = Answer::new(StatusCode::NO_CONTENT);
    answer.is_preflight = true;
    if let (Some(_), Some(methods)) = (allowed_origin(cors, request.headers), methods) {
        for (name, value) in [
            (ACCESS_CONTROL_ALLOW_METHODS, methods),
            (ACCESS_CONTROL_ALLOW_HEADERS, cors.headers.join(", ")),
            (ACCESS_CONTROL_MAX_AGE, cors.max_age.as_secs().to_string()),
        ] {
            let value = HeaderValue::try_from(value).ok();
            answer.headers.extend(value.map(|value| (name, value)));
        }
    }
    received.has_canonical_target = true;
    received.route = route;
    Some(answer)
}

/// Returns the policy of a route, or that of requests that match no route.
fn policy_for(request: &ReceivedRequest, route: Option<RouteIndex>) -> Option<&CorsPolicy> {
    let config = &request.config;
    match route {
        Some(route) => config.route_table.routes[route].settings.cors.as_deref(),
        None => config.cors.as_deref(),
    }
}

fn allowed_origin<'h>(cors: &CorsPolicy, request: &'h HeaderMap) -> Option<&'h HeaderValue> {
    let origin = request.get(ORIGIN);
    origin.filter(|origin| cors.allows(origin.as_bytes()))
}

/// Sets the CORS headers of a response and removes those of the upstream.
pub(crate) fn apply_headers(
    request: &ReceivedRequest,
    headers: &HeaderMap,
    response: &mut ResponseHeader,
) -> Result<()> {
    let Some(cors) = policy_for(request, request.route) else {
        return Ok(());
    };
    response.remove_header(&ACCESS_CONTROL_ALLOW_ORIGIN);
    response.remove_header(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
    // Also without `Origin`, so that caches do not use the response for cross-origin requests.
    add_vary(response, "Origin")?;
    let Some(origin) = allowed_origin(cors, headers) else {
        return Ok(());
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
    Ok(())
}
