//! The gateway: who may reach what, decided once; carried on its connection, or by Pingora.
//!
//! A request's way: [`head`] checks it byte by byte, [`target`] refuses what has two readings,
//! [`route`] finds where it belongs, the token is verified, [`policy`] decides, [`limit`] counts,
//! and then it is forwarded with the identity of its caller. [`App`] is all of it, made from a
//! [`Config`].
//!
//! The modules in this list are plain Rust without Pingora, so that a test, a fuzzer or a benchmark
//! calls them.

pub mod access;
mod admin;
mod app;
mod check;
pub mod client;
pub mod config;
mod connection;
mod context;
mod explain;
pub mod framing;
mod gateway;
mod grpc;
mod handover;
pub mod head;
pub mod headers;
mod ids;
pub mod injection;
mod keep;
pub mod limit;
mod listener;
mod live;
mod metrics;
mod patience;
mod places;
pub mod policy;
mod reload;
mod response_buffers;
pub mod route;
mod schema;
mod sockets;
mod spare;
mod state;
mod stream;
pub mod target;
mod tls;
mod traces;
mod upstream;
mod wire;

pub use app::{App, Listeners};
pub use check::{ASSUMED_POOLS, assumed_settings, check_files};
pub use config::Config;
pub use context::Trace;
pub use explain::{Sender, explain};
pub use handover::{Inheritance, Predecessor};
pub use schema::SCHEMA;
pub use sockets::Sockets;

#[cfg(test)]
mod tests;
