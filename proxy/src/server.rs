//! Server.

mod abuse_tracker;
pub(crate) mod acceptor;
pub(crate) mod connections;
mod http2;
