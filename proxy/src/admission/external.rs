//! The check of a request by the external authorization service of its route.

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::RequestHeader;
use postern_core::Problem;
use postern_core::token::Caller;
use postern_core::trace::TRACESTATE;

use crate::admission::authorize::request_authority;
use crate::external_authorization::{AddedHeaders, ExternalAuthorizer};
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
    let client = request.client_share();
    let headers = || check_headers(head, request);
    authorizer.check(request.id, client, headers).await
}

/// Returns the header fields of the call: those of Traefik's `ForwardAuth`, the identity fields of
/// requests to upstreams, and the ids of the request.
fn check_headers(head: &RequestHeader, request: &ReceivedRequest) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut insert = |name: &'static str, value: &[u8]| {
        // Values have been checked with the request head or the token.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let scheme = if request.is_tls { "https" } else { "http" };
    let client = request.known_address();
    let client = client.map_or("unknown".to_owned(), |it| it.to_string());
    insert("x-forwarded-method", head.method.as_str().as_bytes());
    insert("x-forwarded-uri", head.raw_path());
    insert("x-forwarded-host", request_authority(head).as_bytes());
    insert("x-forwarded-proto", scheme.as_bytes());
    insert("x-forwarded-for", client.as_bytes());
    if let Some(caller) = &request.caller {
        let kind = match caller {
            Caller::User(_) => "user",
            Caller::Service(_) => "service",
        };
        insert("x-postern-kind", kind.as_bytes());
        insert("x-postern-subject", caller.subject().as_bytes());
        insert("x-postern-issuer", caller.issuer().as_bytes());
        insert("x-postern-scopes", caller.scopes().join(" ").as_bytes());
        if let Some(service) = caller.service() {
            insert("x-postern-service", service.service_id.as_bytes());
        }
    }
    insert("x-request-id", request.id.to_string().as_bytes());
    insert("traceparent", &request.trace.to_text());
    // That of a client whose trace is continued.
    let tracestate = head.headers.get(TRACESTATE);
    if let Some(state) = tracestate.filter(|_| request.trace.parent.is_some()) {
        insert("tracestate", state.as_bytes());
    }
    headers
}
