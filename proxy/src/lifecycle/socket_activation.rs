//! Inherited listening sockets, from a running process ([`crate::InheritedListeners`]) or from a
//! service manager (socket activation).
//!
//! The protocol of the manager is that of
//! [`sd_listen_fds(3)`](https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html):
//! `LISTEN_FDS` sockets from file descriptor 3, if `LISTEN_PID` is this process. While no process
//! runs, connections wait in the accept queue, so that a restart refuses none. A socket is matched
//! with the listener of the configuration that has the same address.

use std::net::SocketAddr;

use listenfd::ListenFd;
use postern_core::exit::Exit;
use postern_service::http;
use rustix::net::sockopt::socket_acceptconn;
use tokio::net::TcpListener;

use crate::config::Config;

/// The listening sockets of the gateway.
#[derive(Debug)]
pub struct Listeners {
    /// One socket for each `[[listen]]`, in the order of the configuration.
    pub public: Vec<TcpListener>,
    /// The socket of the admin listener.
    pub admin: Option<TcpListener>,
}

/// Inherited listening sockets.
#[derive(Debug)]
pub struct InheritedSockets(pub(crate) Vec<std::net::TcpListener>);

impl InheritedSockets {
    /// Returns the sockets of the service manager and removes the variables that announce them.
    /// Must be called once, before a second thread is started.
    ///
    /// # Errors
    /// Status 64, with every descriptor that is not a listening TCP socket.
    pub fn from_environment() -> Result<Self, Exit> {
        let mut passed = ListenFd::from_env();
        let (mut sockets, mut wrong) = (Vec::new(), Vec::new());
        for number in 0..passed.len() {
            match passed.take_tcp_listener(number) {
                Ok(Some(socket)) if socket_acceptconn(&socket).unwrap_or(false) => {
                    sockets.push(socket);
                }
                Ok(Some(_) | None) => {
                    wrong.push(format!("socket {number} of LISTEN_FDS does not listen"));
                }
                Err(error) => wrong.push(format!("socket {number} of LISTEN_FDS: {error}")),
            }
        }
        if wrong.is_empty() {
            Ok(Self(sockets))
        } else {
            Err(Exit::usage(wrong.join("\n")))
        }
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the listeners of a configuration: inherited sockets, and newly bound ones for the
    /// other addresses.
    ///
    /// # Errors
    /// Status 64, with every inherited socket that the configuration does not name, because its
    /// clients would never be accepted. Status 69 if an address cannot be bound.
    pub async fn bind_listeners(mut self, config: &Config) -> Result<Listeners, Exit> {
        let addresses = config
            .listen
            .iter()
            .map(|listen| listen.address)
            .chain(config.admin.iter().map(|admin| admin.address));
        let passed: Vec<_> = addresses
            .map(|address| (address, self.take_bound_to(address)))
            .collect();
        if !self.is_empty() {
            let unknown: Vec<String> = self.0.iter().map(unknown_socket).collect();
            return Err(Exit::usage(unknown.join("\n")));
        }
        let mut public = Vec::with_capacity(passed.len());
        for (address, passed) in passed {
            public.push(match passed {
                Some(socket) => to_tokio(socket).map_err(|error| {
                    Exit::unavailable(format!(
                        "cannot listen on the inherited socket {address}: {error}"
                    ))
                })?,
                None => http::bind(address).await?,
            });
        }
        let admin = config.admin.as_ref().and_then(|_| public.pop());
        Ok(Listeners { public, admin })
    }

    fn take_bound_to(&mut self, address: SocketAddr) -> Option<std::net::TcpListener> {
        let found = self
            .0
            .iter()
            .position(|socket| socket.local_addr().is_ok_and(|own| own == address));
        found.map(|found| self.0.swap_remove(found))
    }
}

fn to_tokio(socket: std::net::TcpListener) -> std::io::Result<TcpListener> {
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket)
}

fn unknown_socket(socket: &std::net::TcpListener) -> String {
    let address = socket
        .local_addr()
        .map_or_else(|error| error.to_string(), |address| address.to_string());
    format!("the inherited socket {address} matches neither a [[listen]] nor [admin]")
}
