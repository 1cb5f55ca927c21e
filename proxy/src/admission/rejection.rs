//! Responses to rejected requests. The connection stays open if the whole request was read.

use bytes::Bytes;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;
use postern_core::{Code, Problem};
use postern_http::downstream::{AbortReason, RequestDeadline};
use postern_http::message::grpc;
use postern_http::message::grpc::GrpcStatus;
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
    if grpc::is_call(client.req_header()) {
        let status = grpc_status(client, problem.code());
        let mut response = status.trailers_only_response(problem.message(), &rendered.headers)?;
        response.insert_header("X-Request-Id", id)?;
        apply_common_headers(client, &mut response, request, upstream)?;
        return client.write_head(Box::new(response), true).await;
    }
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

/// Ends a gRPC call whose response has started. The trailers carry the reason, which a reset would
/// not.
pub(crate) async fn end_grpc_call(client: &mut Session, code: Code) -> Result<()> {
    let trailers = grpc_status(client, code).trailers(code.title());
    client.as_mut().write_response_trailers(trailers).await
}

/// Returns the gRPC status of a call that ends with this code; deadlines have a status of their
/// own.
fn grpc_status(client: &Session, code: Code) -> GrpcStatus {
    match client.deadline().and_then(RequestDeadline::abort_reason) {
        Some(AbortReason::ClientDeadline | AbortReason::UpstreamDeadline) => {
            GrpcStatus::DeadlineExceeded
        }
        Some(
            AbortReason::InvalidFraming
            | AbortReason::ClientStalled
            | AbortReason::UpstreamTimeout
            | AbortReason::TokenExpired
            | AbortReason::BufferExhausted,
        )
        | None => GrpcStatus::from_code(code),
    }
}
