//! The check of a request by the external authorization service of its route.

use pingora::http::RequestHeader;
use postern_core::Problem;
use postern_core::trace::TRACESTATE;

use crate::admission::authorize::request_authority;
use crate::external_authorization::{AddedHeaders, CheckRequest, ExternalAuthorizer};
use crate::state::request_context::ReceivedRequest;

/// Has the external authorization service of the route decide. Returns the header fields that it adds.
///
/// # Errors
/// The service refuses or does not decide.
pub(super) async fn check(
    authorizer: &ExternalAuthorizer,
    head: &RequestHeader,
    request: &ReceivedRequest,
) -> Result<AddedHeaders, Problem> {
    let tracestate = head.headers.get(TRACESTATE);
    let check = CheckRequest {
        request_id: request.id,
        trace: request.trace,
        tracestate: tracestate.filter(|_| request.trace.parent.is_some()),
        method: head.method.as_str(),
        target: head.raw_path(),
        host: request_authority(head),
        is_tls: request.is_tls,
        client: request.known_address(),
        client_share: request.client_share(),
        caller: request.caller.as_ref(),
    };
    authorizer.check(&check).await
}
