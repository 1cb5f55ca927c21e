//! Forwarding: sends admitted requests to upstreams and their responses to clients.
//!
//! - **Enters:** an `AdmittedRequest`.
//! - **Leaves:** a response, or an error response; the request record (metrics, span, access
//!   event).
//! - **One engine:** `pipeline` implements Pingora's hooks. After admission, `exchange` forwards the
//!   request in the task of its hook, over connections of its own.
//! - **May depend on:** `admission` for rejections and header changes, [`config`](crate::config),
//!   [`api_keys`](crate::api_keys), `upstream`, `downstream`, `compression`,
//!   [`routing`](crate::routing), [`message`](postern_http::message), `state` and
//!   [`telemetry`](crate::telemetry).

mod compressed_response;
mod exchange;
mod failure;
mod failure_cause;
pub mod identity_headers;
mod mirror;
mod open_exchange;
pub(crate) mod pipeline;
mod request_record;
mod response;
mod spans;
mod tunnel;
mod upstream_request;
