//! The HTTP server that the authentication and the notification service share. axum's types are
//! used here and in each service's own `http` module only.
//!
//! [`serve`] adds what every service needs to a router: request ids, `application/problem+json`
//! bodies for all errors, a 500 for a panicking handler, one log event per request, limits, and
//! graceful shutdown.
//!
//! Input: connections and the router of a service. Output: responses.

mod body;
mod budget;
mod forwarded;
mod host;
mod metrics;
mod on_behalf;
mod query;
mod request_layer;
mod server;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};

pub use body::{Json, Raw, SmallJson};
pub use budget::{BodyBudgets, BodyOwner, BudgetPermit};
pub use forwarded::TrustedProxies;
pub use host::AllowedHosts;
pub use metrics::{HttpMetrics, LATENCY_BUCKETS_S};
pub use on_behalf::authenticate;
pub(crate) use on_behalf::user_token;
pub use query::Query;
pub use server::{RequestTelemetry, bind, serve, serve_observed};

use postern_core::problem::{Code, Problem};
use request_layer::RequestInfo;

/// `X-Request-Id`, set by the gateway and repeated in every response.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// `X-Postern-Code`: the problem code of an error response, for the gateway's access event and
/// metrics. The gateway removes it from the response.
pub const PROBLEM_CODE: HeaderName = HeaderName::from_static("x-postern-code");

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of a request body; larger ones are rejected with 413.
    pub body: usize,
    /// Maximum bytes of request bodies in memory over all connections; further ones are rejected
    /// with 503.
    pub bodies: BodyBudgets,
    /// Maximum open connections; further ones wait in the accept queue.
    pub connections: usize,
    /// Maximum time for receiving a request head.
    pub head_timeout: Duration,
    /// Time after the start of a shutdown during which an idle connection may send one more
    /// request.
    pub linger: Duration,
    /// Maximum time for which a shutdown waits for requests in flight.
    pub drain: Duration,
}

/// The id of the request.
#[derive(Clone, Debug)]
pub struct RequestId(pub Arc<str>);

/// The address that opened the connection: the proxy's, if there is one. `None` without a
/// connection, as in a unit test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer(pub Option<SocketAddr>);

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 1 << 20,
            bodies: BodyBudgets::anonymous(16 << 20),
            connections: 10_000,
            head_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            drain: Duration::from_secs(30),
        }
    }
}

// === impl BodyOwner ===

impl BodyOwner {
    /// Charges the body of this request to `self`. Must be called before the body is read; only the
    /// first call for a request has an effect.
    pub fn set(self, parts: &Parts) {
        if let Some(info) = RequestInfo::of(&parts.extensions) {
            let _ignored_after_the_first = info.owner.set(self);
        }
    }
}

// === impl RequestId ===

impl RequestId {
    /// Returns the id that the client sent if it is well-formed (1 to 64 of `A-Z a-z 0-9 - _ .`),
    /// or a new UUIDv7.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let sent = headers
            .get(REQUEST_ID)
            .and_then(|value| value.to_str().ok());
        let sent = sent.filter(|id| (1..=64).contains(&id.len()) && id.bytes().all(is_allowed));
        Self(sent.map_or_else(|| uuid::Uuid::now_v7().to_string().into(), Arc::from))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let info = RequestInfo::of(&parts.extensions).map(|info| info.id.clone());
        Ok(info.unwrap_or_else(|| Self::of(&parts.headers)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let info = RequestInfo::of(&parts.extensions);
        Ok(info.map(|info| info.peer).unwrap_or_default())
    }
}

/// Returns the token of `Authorization: Bearer …` (RFC 6750 section 2.1).
///
/// # Errors
/// `authentication_required` without the header, `invalid_header` if it occurs twice,
/// `token_malformed` for another scheme or an empty token.
pub fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Code::AuthenticationRequired)?;
    if values.next().is_some() {
        return Err(Problem::new(Code::InvalidHeader).detail("Authorization occurs more than once"));
    }
    // The verifier rejects text that is not a token.
    let text = std::str::from_utf8(value.as_bytes()).ok();
    let parts = text.and_then(|text| text.split_once(' '));
    let parts = parts.map(|(scheme, token)| (scheme, token.trim_matches(' ')));
    match parts {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() => {
            Ok(token)
        }
        _ => Err(Problem::new(Code::TokenMalformed).detail("Authorization must be: Bearer TOKEN")),
    }
}

/// Creates a response with a JSON body.
pub fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(_) => Problem::new(Code::Internal).into_response(),
    }
}

/// Adds `Cache-Control: no-store`, for responses that contain a token.
#[must_use]
pub fn no_store(mut response: Response) -> Response {
    let value = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (AUTHORIZATION, HeaderValue::from_str(value).expect("value")))
            .collect()
    }

    #[test]
    fn bearer_token_requires_exactly_one_header() {
        let refusal = |values: &[&str]| {
            bearer(&headers(values))
                .map(str::to_owned)
                .map_err(|problem| problem.code())
        };
        assert_eq!(bearer(&headers(&["bearer a.b.c"])).ok(), Some("a.b.c"));
        assert_eq!(refusal(&[]), Err(Code::AuthenticationRequired));
        assert_eq!(refusal(&["Bearer a", "Bearer b"]), Err(Code::InvalidHeader));
        assert_eq!(refusal(&["Basic a"]), Err(Code::TokenMalformed));
        assert_eq!(refusal(&["Bearer  "]), Err(Code::TokenMalformed));
    }

    #[test]
    fn only_well_formed_request_id_is_kept() {
        let id = |text: &str| {
            let value = HeaderValue::from_str(text).expect("value");
            RequestId::of(&[(REQUEST_ID, value)].into_iter().collect()).0
        };
        assert_eq!(&*id("abc-1"), "abc-1");
        assert_ne!(&*id("a b"), "a b");
    }
}
