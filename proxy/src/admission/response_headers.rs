//! Header fields that the gateway adds to all responses, including rejections.

use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use crate::admission::{cors, header_changes};
use crate::state::request_context::ReceivedRequest;
use crate::upstream::UpstreamPool;

/// Sets the CORS fields and the route's response headers.
pub(crate) fn apply_common_headers(
    client: &Session,
    response: &mut ResponseHeader,
    request: &ReceivedRequest,
    upstream: Option<&UpstreamPool>,
) -> Result<()> {
    let head = client.req_header();
    cors::apply_headers(request, &head.headers, response)?;
    let changes = match request.matched_route() {
        Some(route) => &route.settings.response_headers,
        None => &request.config.response_headers,
    };
    if let Some(changes) = changes {
        let variables = header_changes::variables(head, request, upstream);
        header_changes::edit_headers(response, |headers| {
            header_changes::apply(changes, headers, &variables);
        });
    }
    Ok(())
}
