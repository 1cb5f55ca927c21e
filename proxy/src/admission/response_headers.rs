//! Response headers of the gateway.

use pingora::http::ResponseHeader;
use pingora_core::Result;
use postern_common::Code;

use crate::admission::cors;
use crate::downstream::client_exchange::Client;
use crate::state::request_context::Context;

/// What refusals carry as well: the route's own fields, cross-origin permission, what is left of a
/// rate.
pub(crate) fn dress_common(
    client: &impl Client,
    response: &mut ResponseHeader,
    ctx: &Context,
) -> Result<()> {
    cors::dress(ctx, &client.request().headers, response)?;
    if let Some(route) = ctx.route() {
        for (name, value) in &route.response_headers {
            response.insert_header(name, value)?;
        }
    }
    if let Some(quota) = ctx.quota
        && (quota.is_of_route || ctx.refused == Some(Code::RateLimited))
    {
        for (name, value) in quota.fields() {
            response.insert_header(name, value)?;
        }
    }
    Ok(())
}
