//! gRPC over HTTP/2: detection of calls, their deadlines, and rejections as a gRPC status.
//!
//! A call is answered with HTTP status 200, and its result is a status in the trailers (gRPC's
//! [PROTOCOL-HTTP2](https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md)). Rejections by
//! the gateway are responses without a body whose head carries that status ("Trailers-Only").

use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use postern_core::{Code, Problem};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: &str = "grpc-timeout";
const MEDIA_TYPE: &str = "application/grpc";

/// What is encoded in a message, beside all that is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Maximum digits of a `grpc-timeout`.
const MAX_TIMEOUT_DIGITS: usize = 8;

/// The gRPC status codes that the gateway sends
/// ([list](https://grpc.github.io/grpc/core/md_doc_statuscodes.html)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStatus {
    /// Any other reason.
    Unknown = 2,
    /// The deadline of the call has passed.
    DeadlineExceeded = 4,
    /// The caller is not permitted to make the call.
    PermissionDenied = 7,
    /// No route has the method.
    Unimplemented = 12,
    /// The call or its answer is malformed.
    Internal = 13,
    /// The call may be tried again.
    Unavailable = 14,
    /// The caller has no valid credentials.
    Unauthenticated = 16,
}

/// Returns whether the request is a gRPC call, which is rejected with a gRPC status.
pub fn is_call(head: &Parts) -> bool {
    let media_type = || {
        head.headers
            .get(CONTENT_TYPE)?
            .as_bytes()
            .get(..MEDIA_TYPE.len())
    };
    head.version == Version::HTTP_2
        && head.method == Method::POST
        && media_type().is_some_and(|start| start.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes()))
}

/// Returns whether the client accepts trailers. RFC 9113 section 8.2.2 allows no other value of
/// `TE`.
pub fn accepts_trailers(head: &RequestHeader) -> bool {
    head.version == Version::HTTP_2 && head.headers.get(TE).is_some_and(|te| te == "trailers")
}

/// Returns whether the client of a call has set a deadline.
pub fn has_client_timeout(head: &Parts) -> bool {
    is_call(head) && head.headers.contains_key(GRPC_TIMEOUT)
}

/// Returns the time for a request: that of the route, or a shorter `grpc-timeout`.
///
/// # Errors
/// `invalid_header` if `grpc-timeout` is malformed.
pub fn effective_timeout(head: &Parts, route_timeout: Duration) -> Result<Duration, Problem> {
    let Some(timeout) = head.headers.get(GRPC_TIMEOUT).filter(|_| is_call(head)) else {
        return Ok(route_timeout);
    };
    match parse_timeout(timeout.as_bytes()) {
        Some(timeout) => Ok(timeout.min(route_timeout)),
        None => Err(Problem::new(Code::InvalidHeader)
            .detail("grpc-timeout must be 1 to 8 digits and one of H, M, S, m, u and n.")),
    }
}

fn parse_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if !(1..=MAX_TIMEOUT_DIGITS).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

// === impl GrpcStatus ===

impl GrpcStatus {
    /// Returns the gRPC status of a problem code, according to gRPC's
    /// [mapping](https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md) of HTTP
    /// statuses.
    pub fn from_code(code: Code) -> Self {
        match code.status().as_u16() {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// Returns the trailers that end a call with this status.
    pub fn trailers(self, message: &str) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(&GRPC_STATUS, HeaderValue::from(self as u16));
        if let Ok(message) =
            HeaderValue::try_from(utf8_percent_encode(message, ENCODED).to_string())
        {
            trailers.insert(&GRPC_MESSAGE, message);
        }
        trailers
    }

    /// Builds a "Trailers-Only" response. The `fields` of a problem are included, except those that
    /// describe its body.
    pub fn trailers_only_response(
        self,
        message: &str,
        fields: &HeaderMap,
    ) -> Result<ResponseHeader> {
        let mut response = ResponseHeader::build(200, Some(8))?;
        for (name, value) in fields
            .iter()
            .filter(|(name, _)| ![CONTENT_TYPE, CONTENT_LENGTH].contains(name))
        {
            response.insert_header(name, value)?;
        }
        response.insert_header(CONTENT_TYPE, MEDIA_TYPE)?;
        for (name, value) in &self.trailers(message) {
            response.insert_header(name, value)?;
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn call(fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/pkg.Service/Method").version(Version::HTTP_2);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn grpc_call_is_a_post_over_http2() {
        for media_type in [
            "application/grpc",
            "application/grpc+proto",
            "Application/gRPC; a=b",
        ] {
            assert!(
                is_call(&call(&[("content-type", media_type)])),
                "{media_type}"
            );
        }
        assert!(!is_call(&call(&[])));
        assert!(!is_call(&call(&[("content-type", "application/json")])));
        let mut old = call(&[("content-type", "application/grpc")]);
        old.version = Version::HTTP_11;
        assert!(!is_call(&old));
    }

    #[test]
    fn shorter_deadline_applies() {
        let minute = Duration::from_secs(60);
        let read = |timeout| {
            let head = call(&[
                ("content-type", "application/grpc"),
                ("grpc-timeout", timeout),
            ]);
            effective_timeout(&head, minute).map_err(|problem| problem.code())
        };
        assert_eq!(read("1500m"), Ok(Duration::from_millis(1500)));
        assert_eq!(read("2S"), Ok(Duration::from_secs(2)));
        assert_eq!(read("100u"), Ok(Duration::from_micros(100)));
        assert_eq!(read("0n"), Ok(Duration::ZERO));
        for longer in ["1M", "99999999H", "99999999S"] {
            assert_eq!(read(longer), Ok(minute), "{longer}");
        }
        for malformed in ["", "S", "5", "-1S", "1.5S", "123456789n", "1s", " 1S"] {
            assert_eq!(read(malformed), Err(Code::InvalidHeader), "{malformed:?}");
        }
        let plain = call(&[("grpc-timeout", "nonsense")]);
        assert_eq!(
            effective_timeout(&plain, minute).expect("not a gRPC call"),
            minute
        );
    }

    #[test]
    fn problem_codes_map_to_grpc_statuses() {
        let all = [
            (Code::InvalidHeader, 13),
            (Code::TokenExpired, 16),
            (Code::InsufficientScope, 7),
            (Code::NotFound, 12),
            (Code::RateLimited, 14),
            (Code::UpstreamFailed, 14),
            (Code::UpstreamUnavailable, 14),
            (Code::UpstreamTimeout, 14),
            (Code::BodyTooLarge, 2),
            (Code::Internal, 2),
        ];
        for (code, status) in all {
            assert_eq!(GrpcStatus::from_code(code) as u16, status, "{code:?}");
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        let trailers = GrpcStatus::Internal.trailers("50 % «off»\n");
        assert_eq!(trailers["grpc-status"], "13");
        assert_eq!(trailers["grpc-message"], "50 %25 %C2%ABoff%C2%BB%0A");
    }
}
