//! Forwarding.

mod failure;
pub(crate) mod fast_path;
mod http1_session;
pub mod identity_headers;
mod request_record;
mod response;
pub(crate) mod streaming_path;
mod upstream_request;

use pingora_core::ErrorType;

/// The type of every error that this gateway raises itself; its code stands in the context.
const REFUSED: ErrorType = ErrorType::new("Refused");
