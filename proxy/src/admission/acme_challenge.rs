//! Responses to HTTP-01 challenges (RFC 8555 section 8.3).

use bytes::Bytes;
use http::{Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;
use postern_core::{Code, Problem};

use crate::admission::response_headers::apply_common_headers;
use crate::admission::{rate_limits, rejection};
use crate::certificates::{HTTP_CHALLENGE_PREFIX, PendingChallenges};
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Answers a request for a challenge response, before routing. Returns whether it was one. A token
/// that is not pending is 404: an ACME client behind the gateway has no path in common with it.
pub(super) async fn answer(
    state: &GatewayState,
    challenges: &PendingChallenges,
    client: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    let head = client.req_header();
    let path = std::str::from_utf8(head.raw_path()).unwrap_or_default();
    let Some(token) = path.strip_prefix(HTTP_CHALLENGE_PREFIX) else {
        return Ok(false);
    };
    if !challenges.answers_http() {
        return Ok(false);
    }
    if let Err(problem) = rate_limits::check_address(state, ctx) {
        rejection::write_rejection(client, ctx, &problem).await?;
        return Ok(true);
    }
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    let authorization = match is_read {
        true => challenges.key_authorization(token).await,
        false => None,
    };
    let Some(body) = authorization else {
        rejection::write_rejection(client, ctx, &Problem::new(Code::NotFound)).await?;
        return Ok(true);
    };
    let is_head = client.req_header().method == Method::HEAD;
    let mut response = ResponseHeader::build(StatusCode::OK, Some(4))?;
    response.insert_header("Content-Type", "application/octet-stream")?;
    response.insert_header("Content-Length", body.len())?;
    response.insert_header("Cache-Control", "no-store")?;
    apply_common_headers(client, &mut response, ctx)?;
    client
        .write_response_header(Box::new(response), is_head)
        .await?;
    if !is_head {
        let body = Some(Bytes::from(body));
        client.write_response_body(body, true).await?;
    }
    Ok(true)
}
