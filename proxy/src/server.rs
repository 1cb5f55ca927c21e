//! Server.

mod abuse_tracker;
pub(crate) mod acceptor;
pub(crate) mod connection_handler;
mod http2;
