//! The HTTP rim that the upstreams share: axum's types stay here and in each service's own `http`
//! module.
//!
//! [`serve`] takes a socket and a router and adds what every service owes its clients: a request id, problems
//! instead of bare statuses, a panic that is one request's 500, one event a request, limits and a
//! stop that drops nothing.

mod body;
mod budget;
mod forwarded;
mod host;
mod rim;
mod server;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};

pub use body::{Json, Raw};
pub use budget::{BodyBudgets, BodyOwner, BudgetPermit};
pub use forwarded::{Network, TrustedProxies};
pub use host::AllowedHosts;
pub use server::{bind, serve};

use crate::problem::{Code, Problem};
use rim::Known;

/// `X-Request-Id`, as the gateway sets it and every answer repeats it.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// `X-Postern-Code`: the code of a refusal once more, where the gateway finds it without reading
/// the body. It goes into the gateway's access event and metrics, and no client sees it.
pub const CODE: HeaderName = HeaderName::from_static("x-postern-code");

/// What a server accepts at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a JSON body; beyond it the answer is 413.
    pub body: usize,
    /// Bytes of bodies that are in memory at once, over all connections; beyond them the answer is
    /// 503.
    pub bodies: BodyBudgets,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long a request's head may take.
    pub head_timeout: Duration,
    /// How long after the beginning of a stop an idle connection may still bring a request.
    pub linger: Duration,
    /// How long a stop waits for requests in flight.
    pub drain: Duration,
}

/// The id of the request that is being answered.
#[derive(Clone, Debug)]
pub struct RequestId(pub Arc<str>);

/// Who opened the connection; `None` where the request came over none, as in a unit test. Behind a
/// proxy it is the proxy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer(pub Option<SocketAddr>);

/// The W3C trace context of the request, to be passed on.
#[derive(Clone, Debug)]
pub struct Traceparent(pub Option<String>);

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
    /// Charges the body of this request to the caller. It counts before the body is read, and the
    /// first one counts.
    pub fn set(self, parts: &Parts) {
        if let Some(known) = Known::of(&parts.extensions) {
            known.set_owner(self);
        }
    }
}

// === impl RequestId ===

impl RequestId {
    /// The id that the client sent if it is well-formed (1 to 64 of `A-Z a-z 0-9 - _ .`), else a
    /// new UUIDv7.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let sent = headers
            .get(REQUEST_ID)
            .and_then(|value| value.to_str().ok())
            .filter(|id| {
                (1..=64).contains(&id.len())
                    && id
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            });
        Self(sent.map_or_else(|| uuid::Uuid::now_v7().to_string().into(), Arc::from))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let known = Known::of(&parts.extensions).map(|known| known.id.clone());
        Ok(known.unwrap_or_else(|| Self::of(&parts.headers)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Known::of(&parts.extensions)
            .map(|known| known.peer)
            .unwrap_or_default())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Traceparent {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let value = parts
            .headers
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        Ok(Self(value.map(str::to_owned)))
    }
}

/// The token of `Authorization: Bearer …` (RFC 6750 section 2.1).
///
/// # Errors
/// `authentication_required` without the header, `invalid_header` when it stands twice,
/// `token_malformed` when it is of another scheme or empty.
pub fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Code::AuthenticationRequired)?;
    if values.next().is_some() {
        return Err(Problem::new(Code::InvalidHeader).detail("Authorization stands more than once"));
    }
    // What is text but no token, the verifier refuses.
    let text = std::str::from_utf8(value.as_bytes()).ok();
    let (scheme, token) = text
        .and_then(|text| text.split_once(' '))
        .ok_or(Code::TokenMalformed)?;
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(Code::TokenMalformed.into());
    }
    Ok(token)
}

/// An answer with a JSON body.
pub fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (
            status,
            [(http::header::CONTENT_TYPE, "application/json")],
            bytes,
        )
            .into_response(),
        Err(_) => Problem::new(Code::Internal).into_response(),
    }
}

/// The same answer, never to be kept by a cache: for whatever carries a token.
#[must_use]
pub fn no_store(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl IntoResponse for Problem {
    /// The problem travels as an extension; the rim writes it out with the request's id.
    fn into_response(self) -> Response {
        let mut response = self.code().status().into_response();
        response.extensions_mut().insert(self);
        response
    }
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
    fn a_bearer_token_is_taken_from_exactly_one_header() {
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
    fn a_request_id_is_kept_only_when_well_formed() {
        let id = |text: &str| {
            let value = HeaderValue::from_str(text).expect("value");
            RequestId::of(&[(REQUEST_ID, value)].into_iter().collect()).0
        };
        assert_eq!(&*id("abc-1"), "abc-1");
        assert_ne!(&*id("a b"), "a b");
    }
}
