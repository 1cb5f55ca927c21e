//! Where the parts of an installation listen.

use std::net::SocketAddr;

use tokio::net::TcpListener;

/// The sockets of the development services.
#[derive(Debug)]
pub struct DevelopmentSockets {
    /// The identity pool.
    pub identity_pool: TcpListener,
    /// The actor service.
    pub actor: TcpListener,
    /// The document service.
    pub document: TcpListener,
    /// The social provider.
    pub social: TcpListener,
    /// The SMTP server of the mail catcher.
    pub smtp: TcpListener,
    /// The web page and API of the mail catcher, and the landing page of social sign-ins.
    pub mail: TcpListener,
}

/// The address of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gateway, which is the only part that clients connect to.
    pub proxy: SocketAddr,
    /// The authentication upstream.
    pub auth: SocketAddr,
    /// The notification upstream.
    pub notify: SocketAddr,
    /// The identity pool.
    pub identity_pool: SocketAddr,
    /// The actor service.
    pub actor: SocketAddr,
    /// The document service.
    pub document: SocketAddr,
    /// The social provider.
    pub social: SocketAddr,
    /// The mail catcher's SMTP server.
    pub smtp: SocketAddr,
    /// The mail catcher's web page and API, and the landing page of social sign-ins.
    pub mail: SocketAddr,
    /// Admin listener of the gateway.
    pub proxy_admin: SocketAddr,
    /// Admin listener of the authentication upstream.
    pub auth_admin: SocketAddr,
    /// Admin listener of the notification upstream.
    pub notify_admin: SocketAddr,
    /// The console.
    pub console: SocketAddr,
}
