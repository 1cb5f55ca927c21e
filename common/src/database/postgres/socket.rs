//! Kernel options of the driver's sockets, which the driver opens itself and does not expose.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Idle time before the first TCP keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between unanswered keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered keepalive probes after which the kernel closes the connection.
const KEEPALIVE_PROBES: u32 = 3;
/// Maximum time for which sent data may stay unacknowledged before the kernel closes the
/// connection.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Sets TCP keepalive and `TCP_USER_TIMEOUT` on the connections of this process to `port` that do
/// not have them yet. If a sandbox forbids it, statement deadlines and checks of idle connections
/// still detect failures.
pub(super) fn set_keepalive(port: u16) {
    if let Err(error) = try_set_keepalive(port) {
        tracing::debug!(%error, "PostgreSQL TCP keepalive not set");
    }
}

fn try_set_keepalive(port: u16) -> std::io::Result<()> {
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
        // Duplicates the descriptor, because the driver may close its own meanwhile.
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => set_socket_options(&socket, port)?,
            Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn set_socket_options(socket: &OwnedFd, port: u16) -> std::io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_the_port_get_keepalive_and_user_timeout() {
        let connect = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("bound");
            let stream = TcpStream::connect(address).expect("connects");
            (listener, stream, address.port())
        };
        let ((_server, stream, port), (_other_server, other, _)) = (connect(), connect());
        set_keepalive(port);
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        let duration = |read: rustix::io::Result<Duration>| read.expect("an option").as_secs();
        assert_eq!(duration(sockopt::tcp_keepidle(&stream)), 15);
        assert_eq!(duration(sockopt::tcp_keepintvl(&stream)), 5);
        assert_eq!(sockopt::tcp_keepcnt(&stream), Ok(3));
        assert_eq!(sockopt::tcp_user_timeout(&stream), Ok(30_000));
        assert_eq!(sockopt::socket_keepalive(&other), Ok(false), "another port");
    }
}
