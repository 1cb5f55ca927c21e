//! Refusals are written responses: the connection lives on where the request has been read whole.

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_core::Result;
use postern_common::{Code, Problem};
use uuid::Uuid;

use crate::admission::response_headers::dress_common;
use crate::downstream::client_exchange::Client;
use crate::downstream::deadline::{Fault, Watch};
use crate::message::grpc;
use crate::message::grpc::Status;
use crate::state::request_context::Context;

/// Writes the problem as the answer.
pub(crate) async fn write(
    client: &mut impl Client,
    ctx: &mut Context,
    problem: &Problem,
) -> Result<()> {
    ctx.refused = Some(problem.code());
    let mut text = Uuid::encode_buffer();
    let id: &str = ctx.id.hyphenated().encode_lower(&mut text);
    let rendered = problem.render(id);
    if grpc::is_call(client.request()) {
        let status = status(client, problem.code());
        let mut response = status.head(problem.message(), &rendered.headers)?;
        response.insert_header("X-Request-Id", id)?;
        dress_common(client, &mut response, ctx)?;
        return client.write_head(response, true).await;
    }
    let mut response = ResponseHeader::build(rendered.status, Some(8))?;
    for (name, value) in &rendered.headers {
        response.insert_header(name, value)?;
    }
    response.insert_header("Content-Length", rendered.body.len())?;
    response.insert_header("X-Request-Id", id)?;
    dress_common(client, &mut response, ctx)?;
    client.write_head(response, false).await?;
    client
        .write_body(Some(Bytes::from(rendered.body)), true)
        .await
}

/// Ends a call whose response has begun: its trailers say why, where a reset would not.
pub(crate) async fn end_call(client: &mut impl Client, code: Code) -> Result<()> {
    let trailers = status(client, code).trailers(code.title());
    client.write_trailers(trailers).await
}

/// The status of a call that is ended with this code. Its own deadline has a status of its own.
fn status(client: &impl Client, code: Code) -> Status {
    match client.watch().and_then(Watch::fault) {
        Some(Fault::Deadline | Fault::Overdue) => Status::DeadlineExceeded,
        Some(
            Fault::Framing | Fault::Stalled | Fault::Upstream | Fault::Expired | Fault::NoBuffer,
        )
        | None => Status::of(code),
    }
}
