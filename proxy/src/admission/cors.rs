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
use crate::config::Cors;
use crate::config::Methods;
use crate::downstream::client_exchange::Client;
use crate::message::target::Target;
use crate::routing::router::Request;
use crate::routing::table::Found;
use crate::state::State;
use crate::state::request_context::Context;

/// Fields of an answer that scripts may read, besides those that they always may.
const EXPOSED: &str =
    "Location, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id";

/// Answers a preflight where there are rules for it: browsers send no token with one. Whether it
/// did.
pub(crate) async fn preflight(
    state: &State,
    client: &mut impl Client,
    ctx: &mut Context,
) -> Result<bool> {
    if client.request().method != Method::OPTIONS {
        return Ok(false);
    }
    let Some(mut response) = permission(client, ctx)? else {
        return Ok(false);
    };
    if let Err(problem) = rate_limits::by_address(state, ctx) {
        rejection::write(client, ctx, &problem).await?;
        return Ok(true);
    }
    if state.stopping.load(Ordering::Relaxed) {
        client.close();
    }
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(response, true).await?;
    client.write_body(None, true).await?;
    Ok(true)
}

/// The answer to a preflight; without permission where the origin has none, which is all that a
/// browser asks.
fn permission(client: &impl Client, ctx: &mut Context) -> Result<Option<ResponseHeader>> {
    let head = client.request();
    let wanted = head
        .headers
        .get(ACCESS_CONTROL_REQUEST_METHOD)
        .and_then(|method| method.to_str().ok());
    let (Ok(target), Some(method), Some(_)) = (
        Target::parse(head.raw_path()),
        wanted,
        head.headers.get(ORIGIN),
    ) else {
        return Ok(None);
    };
    let request = |method| Request {
        host: authorize::host(head),
        path: target.path,
        query: target.query,
        method,
        headers: &head.headers,
    };
    let live = &ctx.live;
    let (route, methods) = match live.table.find(&request(method)) {
        Found::Route(route) => (Some(route), Some(live.table.routes[route].pattern.methods)),
        // An upstream that takes OPTIONS speaks for itself.
        Found::Method { .. } | Found::Nothing
            if matches!(live.table.find(&request("OPTIONS")), Found::Route(_)) =>
        {
            return Ok(None);
        }
        // So that a page can read why it was refused; whether there is such a path is not told.
        Found::Method { .. } | Found::Nothing => (None, Methods::of(method)),
    };
    let Some(cors) = rules(ctx, route) else {
        return Ok(None);
    };
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(8))?;
    if let (true, Some(methods)) = (allow(cors, &head.headers, &mut response)?, methods) {
        response.insert_header("Access-Control-Allow-Methods", methods.to_string())?;
        response.insert_header("Access-Control-Allow-Headers", cors.headers.join(", "))?;
        response.insert_header("Access-Control-Max-Age", cors.max_age.as_secs())?;
    }
    ctx.is_canonical = true;
    ctx.route = route;
    Ok(Some(response))
}

/// The rules of a route, or those of requests that no route takes.
fn rules(ctx: &Context, route: Option<usize>) -> Option<&Cors> {
    match route {
        Some(route) => ctx.live.table.routes[route].cors.as_deref(),
        None => ctx.live.cors.as_deref(),
    }
}

/// Lets the page that asked read the answer, where the rules say so. What an upstream says of it
/// does not count there.
pub(crate) fn dress(
    ctx: &Context,
    request: &HeaderMap,
    response: &mut ResponseHeader,
) -> Result<()> {
    let Some(cors) = rules(ctx, ctx.route) else {
        return Ok(());
    };
    response.remove_header(&ACCESS_CONTROL_ALLOW_ORIGIN);
    response.remove_header(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
    allow(cors, request, response).map(|_| ())
}

fn allow(cors: &Cors, request: &HeaderMap, response: &mut ResponseHeader) -> Result<bool> {
    // Without an Origin as well: a cache must not keep that answer for a page.
    response.append_header("Vary", "Origin")?;
    let Some(origin) = request
        .get(ORIGIN)
        .filter(|origin| cors.allows(origin.as_bytes()))
    else {
        return Ok(false);
    };
    response.insert_header("Access-Control-Allow-Origin", origin)?;
    response.insert_header("Access-Control-Expose-Headers", EXPOSED)?;
    Ok(true)
}
