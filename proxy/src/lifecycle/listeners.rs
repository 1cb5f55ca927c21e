//! Bound listening sockets.

use tokio::net::TcpListener;

/// The listening sockets of the gateway.
#[derive(Debug)]
pub struct Listeners {
    /// One socket for each `[[listen]]`, in the order of the configuration.
    pub public: Vec<TcpListener>,
    /// The socket of the admin listener.
    pub admin: Option<TcpListener>,
}
