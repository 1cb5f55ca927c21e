//! Forwarding: sends admitted requests to upstreams and their responses to clients.
//!
//! - **Enters:** an admitted request with its `RequestContext`.
//! - **Leaves:** a response, or an error response; the request record (metrics, span, access
//!   event).
//! - **Two paths:** `fast_path` for complete small requests to plain HTTP/1.1 upstreams, and
//!   `streaming_path` (Pingora) for everything else. Both use the functions of the other modules,
//!   so that their rules are the same.
//! - **May depend on:** `admission` for rejections, `upstream`, `downstream`,
//!   [`routing`](crate::routing), [`message`](crate::message), `state` and
//!   [`telemetry`](crate::telemetry).

mod failure;
pub(crate) mod fast_path;
mod http1_session;
pub mod identity_headers;
mod request_record;
mod response;
pub(crate) mod streaming_path;
mod upstream_request;

use pingora_core::ErrorType;

/// The type of errors that the gateway raises itself. The problem code is in the request context.
const REFUSED: ErrorType = ErrorType::new("Refused");
