//! The check of a request by the external authorization service of its route.

use pingora_proxy::Session;
use postern_core::Problem;
use postern_core::trace::TRACESTATE;

use crate::admission::authorize::request_authority;
use crate::admission::report_only::{self, DryRun};
use crate::external_authorization::CheckRequest;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// Has the external authorization service of the route decide, if the route has one. In report-only
/// mode the decision is awaited as well, so that it is in the access event and its header fields are
/// added, for at most the timeout of one call.
///
/// # Errors
/// The service refuses or does not decide.
pub(super) async fn check(
    state: &GatewayState,
    client: &Session,
    ctx: &mut RequestContext,
) -> Result<(), Problem> {
    let authorizer = ctx
        .route
        .and_then(|route| ctx.config.authorizers.get(&route));
    let Some(authorizer) = authorizer.cloned() else {
        return Ok(());
    };
    let head = client.req_header();
    let check = CheckRequest {
        request_id: ctx.id,
        trace: ctx.trace,
        tracestate: head
            .headers
            .get(TRACESTATE)
            .filter(|_| ctx.trace.parent.is_some()),
        method: head.method.as_str(),
        target: head.raw_path(),
        host: request_authority(head),
        is_tls: ctx.is_tls,
        client: ctx.client_address.filter(|_| ctx.is_client_known),
        client_share: ctx.client_share(),
        caller: ctx.caller.as_ref(),
    };
    match authorizer.check(&check).await {
        Ok(added) => ctx.added_headers = Some(added),
        Err(problem) if authorizer.config.report_only => {
            let refused = DryRun::ExternalAuthorization(problem.code());
            report_only::record(state, ctx, refused);
        }
        Err(problem) => return Err(problem),
    }
    Ok(())
}
