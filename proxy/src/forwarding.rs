//! Forwarding: sends admitted requests to upstreams and their responses to clients.
//!
//! - **Enters:** an admitted request with its `RequestContext`.
//! - **Leaves:** a response, or an error response; the request record (metrics, span, access
//!   event).
//! - **One pipeline, two paths:** `pipeline` implements Pingora's hooks. After admission, it forwards
//!   a request on the `fast_path` if its length is known and its upstream speaks HTTP/1.1, and lets
//!   Pingora forward everything else (the streaming path). Both use the functions of the other
//!   modules, so that their rules are the same.
//! - **May depend on:** `admission` for rejections and header changes, [`config`](crate::config),
//!   [`api_keys`](crate::api_keys), `upstream`, `downstream`, `compression`,
//!   [`routing`](crate::routing), [`message`](crate::message), `state` and
//!   [`telemetry`](crate::telemetry).

mod compressed_response;
mod failure;
mod failure_cause;
mod fast_path;
pub mod identity_headers;
mod mirror;
mod open_exchange;
mod outbound_data;
pub(crate) mod pipeline;
mod references;
mod request_record;
mod response;
mod spans;
mod upstream_request;

use pingora_core::ErrorType;

/// The type of errors that the gateway raises itself. The problem code is in the request context.
const REFUSED: ErrorType = ErrorType::new("Refused");
