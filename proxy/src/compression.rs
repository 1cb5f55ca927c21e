//! Compression of response bodies: negotiation, encoders and their memory.
//!
//! - **Enters:** `Accept-Encoding` of a request; the parts of a response body.
//! - **Leaves:** the content coding of the response, and the encoded parts.
//! - **May depend on:** [`crate::message`], [`crate::config`], [`crate::client_shares`], and
//!   [`crate::telemetry`] for metrics.

mod accept_encoding;
mod encoder;

pub(crate) use accept_encoding::negotiate;
pub(crate) use encoder::{BodyEncoder, MAX_ENCODER_BYTES};
