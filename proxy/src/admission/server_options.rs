//! `OPTIONS *`, which asks about the server and about no route of it (RFC 9110 section 9.3.7).

use http::StatusCode;
use pingora::http::ResponseHeader;
use pingora_core::Result;

use crate::admission::{rate_limits, rejection};
use crate::downstream::client_exchange::Client;
use crate::message::head;
use crate::state::State;
use crate::state::request_context::Context;

/// Answers it with 204, as a sign of life, within the limits of its sender. Returns whether the
/// request was one.
pub(crate) async fn answer(
    state: &State,
    client: &mut impl Client,
    ctx: &mut Context,
) -> Result<bool> {
    let request = client.request();
    if !head::is_server_options(request.method.as_str().as_bytes(), request.raw_path()) {
        return Ok(false);
    }
    if let Err(problem) = rate_limits::by_address(state, ctx) {
        rejection::write(client, ctx, &problem).await?;
        return Ok(true);
    }
    let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(1))?;
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    client.write_head(response, true).await?;
    client.write_body(None, true).await?;
    Ok(true)
}
