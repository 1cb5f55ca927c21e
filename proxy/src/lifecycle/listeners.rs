//! Listening sockets.

use tokio::net::TcpListener;

/// Bound sockets, one for each `[[listen]]` in the order of the configuration, and one for
/// operators.
#[derive(Debug)]
pub struct Listeners {
    /// For clients.
    pub public: Vec<TcpListener>,
    /// For operators.
    pub admin: Option<TcpListener>,
}
