//! Admission.

pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod rate_limits;
pub(crate) mod rejection;
pub(crate) mod response_headers;
mod server_options;

use pingora_core::Result;

use crate::downstream::client_exchange::ClientExchange;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// From the head of a request to the decision that it may go on. Whether it was answered instead.
pub(crate) async fn admit_or_answer(
    state: &GatewayState,
    client: &mut impl ClientExchange,
    ctx: &mut RequestContext,
) -> Result<bool> {
    if let Some(connection) = client.connection() {
        connection.note_hook_called();
    }
    rate_limits::identify_client(client, ctx);
    if server_options::answer(state, client, ctx).await?
        || cors::preflight(state, client, ctx).await?
    {
        return Ok(true);
    }
    match authorize::authorize(state, client, ctx).await {
        Ok(()) => Ok(false),
        Err(problem) => {
            rejection::write_rejection(client, ctx, &problem).await?;
            Ok(true)
        }
    }
}
