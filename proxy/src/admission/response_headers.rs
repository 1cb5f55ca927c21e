//! Header fields that the gateway adds to all responses, including rejections.

use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;
use postern_core::Code;

use crate::admission::{cors, header_changes};
use crate::state::request_context::RequestContext;

/// Sets the CORS fields, the route's response headers and the rate limit status.
pub(crate) fn apply_common_headers(
    client: &Session,
    response: &mut ResponseHeader,
    ctx: &RequestContext,
) -> Result<()> {
    cors::apply_headers(ctx, &client.req_header().headers, response)?;
    let changes = match ctx.route() {
        Some(route) => &route.settings.response_headers,
        None => &ctx.config.response_headers,
    };
    if let Some(changes) = changes {
        header_changes::apply_to_response(changes, client, response, ctx);
    }
    if let Some(rate_limit) = ctx.rate_limit
        && (rate_limit.is_route_limit || ctx.error_code == Some(Code::RateLimited))
    {
        for (name, value) in rate_limit.header_fields() {
            response.insert_header(name, value)?;
        }
    }
    Ok(())
}
