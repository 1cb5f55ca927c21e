//! Kernel options of the driver's sockets: the driver makes them itself and does not hand them out.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// How long a connection is idle before the kernel asks whether the server is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// How long what was sent may stay without acknowledgement before the kernel gives the connection
/// up.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Sets TCP keepalive and `TCP_USER_TIMEOUT` on every connection of this process to a port that has
/// neither yet. Where a sandbox does not allow it, the deadlines of statements and the checks of
/// idle connections do without.
pub(super) fn watch_connections(port: u16) {
    if let Err(error) = try_watch(port) {
        tracing::debug!(%error, "TCP keepalive of the connections to PostgreSQL is not set");
    }
}

fn try_watch(port: u16) -> std::io::Result<()> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let is_socket = std::fs::read_link(entry.path()).is_ok_and(|target| {
            target
                .to_str()
                .is_some_and(|target| target.starts_with("socket:"))
        });
        let Some(number) = number.filter(|_| is_socket) else {
            continue;
        };
        // A descriptor of ours for the same socket; the number may have been closed meanwhile.
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => watch(&socket, port)?,
            Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn watch(socket: &OwnedFd, port: u16) -> std::io::Result<()> {
    let peer = getpeername(socket)
        .ok()
        .flatten()
        .and_then(|peer| SocketAddr::try_from(peer).ok());
    if peer.is_none_or(|peer| peer.port() != port) || sockopt::socket_keepalive(socket)? {
        return Ok(());
    }
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(
        socket,
        u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
    )?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}
