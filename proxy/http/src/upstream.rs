//! Connections to upstreams: how they are opened and kept, and the requests and responses on them.
//!
//! - **Enters:** a peer of Pingora; a serialized request head and the parts of the body.
//! - **Leaves:** a parsed response and the parts of its body, or a Pingora error of the upstream.
//! - **May depend on:** [`crate::message`] for framing.

mod http1_connection;
mod http2_pool;
mod http2_stream;
mod outbound_data;
mod pinned_certificates;
mod response;
mod transport;

pub use http1_connection::{
    BoundConnection, DuplexStream, IdleCheck, IdlePool, UpstreamConnection,
};
pub use http2_pool::Http2Pool;
pub use http2_stream::UpstreamStream;
pub use outbound_data::OutboundData;
pub use pinned_certificates::{NO_ROOTS, PinnedCertificates, connector_options};
pub use response::{ResponseBody, UpstreamResponse};
pub use transport::UpstreamTransport;
