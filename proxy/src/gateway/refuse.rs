//! Refusals are written responses: the connection lives on where the request has been read whole.

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_core::Result;
use postern_common::Problem;
use uuid::Uuid;

use super::client::Client;
use super::outcome;
use crate::context::Context;

/// Writes the problem as the answer.
pub(super) async fn write(client: &mut impl Client, ctx: &mut Context, problem: &Problem) -> Result<()> {
    ctx.refused = Some(problem.code());
    let mut text = Uuid::encode_buffer();
    let id: &str = ctx.id.hyphenated().encode_lower(&mut text);
    let rendered = problem.render(id);
    let mut response = ResponseHeader::build(rendered.status, Some(8))?;
    for (name, value) in &rendered.headers {
        response.insert_header(name, value)?;
    }
    response.insert_header("Content-Length", rendered.body.len())?;
    response.insert_header("X-Request-Id", id)?;
    outcome::dress_common(client, &mut response, ctx)?;
    client.write_head(response, false).await?;
    client.write_body(Some(Bytes::from(rendered.body)), true).await
}
