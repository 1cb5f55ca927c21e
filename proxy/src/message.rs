//! Messages.

pub mod framing;
pub(crate) mod grpc;
pub mod head;
pub mod headers;
pub mod target;
