//! Downstream.

pub(crate) mod client_address;
pub(crate) mod client_connection;
pub(crate) mod client_exchange;
pub(crate) mod connection_limit;
pub(crate) mod connection_permit;
pub(crate) mod deadline;
pub(crate) mod http2_stream;
pub(crate) mod response_buffers;
pub(crate) mod tls;
