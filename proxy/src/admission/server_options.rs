//! Responses to `OPTIONS *`, which concerns the server and no route (RFC 9110 section 9.3.7).

use http::StatusCode;
use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;

use crate::admission::{rate_limits, rejection};
use crate::downstream::session_ext::SessionExt;
use crate::message::head;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Answers `OPTIONS *` with 204, subject to the address limit. Returns whether the request was
/// answered.
pub(crate) async fn answer(
    state: &GatewayState,
    client: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    let request = client.req_header();
    if !head::is_server_options(request.method.as_str().as_bytes(), request.raw_path()) {
        return Ok(false);
    }
    if let Err(problem) = rate_limits::check_address(state, ctx) {
        rejection::write_rejection(client, ctx, &problem).await?;
        return Ok(true);
    }
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(1))?;
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(Box::new(response), true).await?;
    client.write_response_body(None, true).await?;
    Ok(true)
}
