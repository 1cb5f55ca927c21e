//! The client side of the gateway: connections, streams and their limits.
//!
//! - **Enters:** accepted sockets, after a connection permit has been acquired.
//! - **Leaves:** one checked request at a time, with a [`deadline::RequestDeadline`]; responses,
//!   under the memory budget for slow readers.
//! - **May depend on:** [`crate::config`], [`crate::certificates`] and [`crate::message`].

pub(crate) mod client_connection;
pub(crate) mod connection_limit;
pub(crate) mod connection_permit;
pub(crate) mod deadline;
pub(crate) mod http1_session;
pub(crate) mod http2_stream;
pub(crate) mod read_ahead;
pub(crate) mod response_buffers;
pub(crate) mod session_ext;
pub(crate) mod tls;
