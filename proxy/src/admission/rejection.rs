//! Responses to rejected requests. The connection stays open if the whole request was read.

use bytes::Bytes;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use postern_core::Problem;
use uuid::Uuid;

use crate::admission::response_headers::apply_common_headers;
use crate::downstream::session_ext::SessionExt;
use crate::state::request_context::RequestContext;

/// Writes the problem as the response, `application/problem+json`.
pub(crate) async fn write_rejection(
    client: &mut Session,
    ctx: &mut RequestContext,
    problem: &Problem,
) -> Result<()> {
    ctx.error_code = Some(problem.code());
    let (request, upstream) = (&ctx.request, ctx.last_attempt().map(|(pool, ..)| pool));
    let mut text = Uuid::encode_buffer();
    let id: &str = request.id.hyphenated().encode_lower(&mut text);
    let rendered = problem.render(id);
    let mut response = ResponseHeader::build(rendered.status, Some(8))?;
    for (name, value) in &rendered.headers {
        response.insert_header(name, value)?;
    }
    response.insert_header("Content-Length", rendered.body.len())?;
    response.insert_header("X-Request-Id", id)?;
    apply_common_headers(client, &mut response, request, upstream)?;
    client.write_head(Box::new(response), false).await?;
    client
        .write_response_body(Some(Bytes::from(rendered.body)), true)
        .await
}
