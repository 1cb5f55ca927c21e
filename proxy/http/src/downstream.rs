//! Client connections over HTTP/1.1 and HTTP/2: checked heads and bodies, deadlines and minimum
//! rates, and the memory of responses to slow readers.
//!
//! - **Enters:** an accepted TCP or TLS stream, and [`HttpLimits`].
//! - **Leaves:** sessions of Pingora with one request each; the reason for which one was aborted.
//! - **May depend on:** [`crate::message`], and [`crate::upstream`] for the connection that belongs
//!   to a client connection and for the chunks of a body.

mod client_connection;
mod client_handle;
mod deadline;
mod http1_session;
mod http2_stream;
mod limits;
mod read_ahead;

pub use client_connection::{
    ClientConnection, ClientTransport, DetectedProtocol, FIRST_REQUEST_GRACE, HeadEvent,
};
pub use client_handle::{Attributes, ClientHandle};
pub use deadline::{AbortReason, DeadlineTimer, RequestDeadline};
pub use http1_session::{ConnectionSlot, Http1Session};
pub use http2_stream::{ClientStream, Http2ConnectionInfo, Http2Exchange};
pub use limits::{HttpLimits, RESPONSE_BUFFER_BYTES};
pub use read_ahead::ReadAhead;
