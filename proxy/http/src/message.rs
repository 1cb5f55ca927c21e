//! HTTP messages: syntax checks on bytes and header fields, without I/O.
//!
//! - **Enters:** the bytes of a request head or body, or a parsed HTTP/2 head.
//! - **Leaves:** a checked head, its body framing and its canonical target; or a fault with a
//!   problem code. Ambiguous messages are rejected before any part is forwarded.
//! - **May depend on:** no other module of this crate.

pub mod framing;
pub mod head;
pub mod headers;
pub mod host;
pub mod proxy_protocol;
pub mod target;
pub(crate) mod weight;

/// Data of the largest DATA frame of a response: with the frame's head (RFC 9113 section 4.1) it fills one TLS
/// record (RFC 8446 section 5.1), where the largest frame that a client accepts would take two.
pub const MAX_FRAME_DATA_BYTES: usize = (16 << 10) - 9;
