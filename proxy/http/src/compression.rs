//! Compression of response bodies: negotiation, encoders and their memory.
//!
//! - **Enters:** `Accept-Encoding` of a request; the parts of a response body.
//! - **Leaves:** the content coding of the response, and the encoded parts.
//! - **May depend on:** [`crate::message`] and [`crate::client_shares`].

mod accept_encoding;
mod encoder;

pub use accept_encoding::{ContentCoding, negotiate};
pub use encoder::{BodyEncoder, MAX_ENCODER_BYTES, encoder_bytes};
