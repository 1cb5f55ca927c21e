//! Cross-origin rules of a route (the Fetch standard's CORS protocol).

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;

use super::admit;
use crate::config::{Cors, Route};
use crate::context::Context;
use crate::live::Found;
use crate::route::Request;
use crate::target::Target;

/// Answers a preflight for a route that has rules: browsers send no token with it. Whether it did.
pub(super) async fn preflight(session: &mut Session, ctx: &mut Context) -> Result<bool> {
    if session.req_header().method != Method::OPTIONS {
        return Ok(false);
    }
    let Some(response) = permission(session, ctx)? else { return Ok(false) };
    session.write_response_header(Box::new(response), true).await?;
    session.write_response_body(None, true).await?;
    Ok(true)
}

fn permission(session: &Session, ctx: &mut Context) -> Result<Option<ResponseHeader>> {
    let head = session.req_header();
    let wanted = head.headers.get(ACCESS_CONTROL_REQUEST_METHOD).and_then(|method| method.to_str().ok());
    let (Ok(target), Some(method)) = (Target::parse(head.raw_path()), wanted) else { return Ok(None) };
    let request = Request {
        host: admit::host(head),
        path: target.path,
        query: target.query,
        method,
        headers: &head.headers,
    };
    let Found::Route(index) = ctx.live.table.find(&request) else { return Ok(None) };
    let route = &ctx.live.table.routes[index];
    let Some(cors) = &route.cors else { return Ok(None) };
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(6))?;
    if !allow(cors, &head.headers, &mut response)? {
        return Ok(None);
    }
    response.insert_header("Access-Control-Allow-Methods", route.pattern.methods.to_string())?;
    response.insert_header("Access-Control-Allow-Headers", cors.headers.join(", "))?;
    response.insert_header("Access-Control-Max-Age", cors.max_age.as_secs())?;
    ctx.is_canonical = true;
    ctx.route = Some(index);
    Ok(Some(response))
}

/// Lets the page that asked read the answer, where the route says so.
pub(super) fn dress(route: &Route, request: &HeaderMap, response: &mut ResponseHeader) -> Result<()> {
    match &route.cors {
        Some(cors) => allow(cors, request, response).map(|_| ()),
        None => Ok(()),
    }
}

fn allow(cors: &Cors, request: &HeaderMap, response: &mut ResponseHeader) -> Result<bool> {
    let Some(origin) = request.get(ORIGIN) else { return Ok(false) };
    response.append_header("Vary", "Origin")?;
    let known = cors.origins.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes());
    if known {
        response.insert_header("Access-Control-Allow-Origin", origin)?;
        response.insert_header("Access-Control-Expose-Headers", "Location, Retry-After, X-Request-Id")?;
    }
    Ok(known)
}
