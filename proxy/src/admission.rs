//! Admission.

pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod rate_limits;
pub(crate) mod rejection;
pub(crate) mod response_headers;
mod server_options;

use pingora_core::Result;

use crate::downstream::client_exchange::Client;
use crate::state::State;
use crate::state::request_context::Context;

/// From the head of a request to the decision that it may go on. Whether it was answered instead.
pub(crate) async fn receive(
    state: &State,
    client: &mut impl Client,
    ctx: &mut Context,
) -> Result<bool> {
    if let Some(wire) = client.wire() {
        wire.note_heard();
    }
    rate_limits::recognise(client, ctx);
    if server_options::answer(state, client, ctx).await?
        || cors::preflight(state, client, ctx).await?
    {
        return Ok(true);
    }
    match authorize::admit(state, client, ctx).await {
        Ok(()) => Ok(false),
        Err(problem) => {
            rejection::write(client, ctx, &problem).await?;
            Ok(true)
        }
    }
}
