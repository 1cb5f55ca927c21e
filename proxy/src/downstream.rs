//! What the gateway adds to the client connections of [`postern_http::downstream`]: limits on their
//! number, TLS, and the operations of its hooks on a session.
//!
//! - **Enters:** accepted sockets.
//! - **Leaves:** a connection with its permit and the client of its certificate.
//! - **May depend on:** [`crate::config`] and [`crate::certificates`].

pub(crate) mod session_ext;
pub(crate) mod tls;
