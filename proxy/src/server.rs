//! The server: accepts connections and serves their requests.
//!
//! - **Enters:** bound listening sockets.
//! - **Leaves:** each request goes to one of the two paths of [`crate::forwarding`]; a rejected
//!   head is answered here.
//! - **May depend on:** [`crate::forwarding`], [`crate::admission`] for rejections,
//!   [`crate::certificates`], [`crate::downstream`], [`postern_http::message`], [`crate::state`],
//!   [`crate::telemetry`] and [`crate::config`].

mod abuse_tracker;
pub(crate) mod acceptor;
pub(crate) mod connection_handler;
mod http2;
mod proxy_header;
