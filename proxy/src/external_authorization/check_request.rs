//! The call of an external authorization service.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use postern_core::token::Caller;
use uuid::Uuid;

use crate::telemetry::TraceContext;

/// The properties of a request on which the decision may depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckRequest<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) trace: TraceContext,
    /// The `tracestate` of a client whose trace is continued.
    pub(crate) tracestate: Option<&'a HeaderValue>,
    pub(crate) method: &'a str,
    /// Path and query as the client sent them.
    pub(crate) target: &'a [u8],
    pub(crate) host: &'a str,
    pub(crate) is_tls: bool,
    pub(crate) client: Option<IpAddr>,
    /// The key of the client in shares; `None` if it is not known.
    pub(crate) client_share: Option<u64>,
    pub(crate) caller: Option<&'a Caller>,
}

// === impl CheckRequest ===

impl CheckRequest<'_> {
    /// Returns the header fields of the call: those of Traefik's `ForwardAuth`, the identity fields
    /// of requests to upstreams, and the ids of the request.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut insert = |name: &'static str, value: &[u8]| {
            // Values have been checked with the request head or the token.
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        let scheme = if self.is_tls { "https" } else { "http" };
        let client = self
            .client
            .map_or("unknown".to_owned(), |it| it.to_string());
        insert("x-forwarded-method", self.method.as_bytes());
        insert("x-forwarded-uri", self.target);
        insert("x-forwarded-host", self.host.as_bytes());
        insert("x-forwarded-proto", scheme.as_bytes());
        insert("x-forwarded-for", client.as_bytes());
        if let Some(caller) = self.caller {
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
        insert("x-request-id", self.request_id.to_string().as_bytes());
        insert("traceparent", &self.trace.to_text());
        if let Some(state) = self.tracestate {
            insert("tracestate", state.as_bytes());
        }
        headers
    }
}
