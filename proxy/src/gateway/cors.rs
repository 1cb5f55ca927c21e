//! Cross-origin rules of a route (the Fetch standard's CORS protocol).

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;

use super::admit;
use super::client::Client;
use crate::config::{Cors, Route};
use crate::context::Context;
use crate::live::Found;
use crate::route::Request;
use crate::target::Target;

/// Answers a preflight for a route that has rules: browsers send no token with it. Whether it did.
pub(super) async fn preflight(client: &mut impl Client, ctx: &mut Context) -> Result<bool> {
    if client.request().method != Method::OPTIONS {
        return Ok(false);
    }
    let Some(response) = permission(client, ctx)? else { return Ok(false) };
    client.write_head(response, true).await?;
    client.write_body(None, true).await?;
    Ok(true)
}

fn permission(client: &impl Client, ctx: &mut Context) -> Result<Option<ResponseHeader>> {
    let head = client.request();
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
