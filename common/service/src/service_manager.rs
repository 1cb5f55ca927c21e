//! Readiness and status notifications to the service manager.
//!
//! Implements the notification protocol of
//! [`sd_notify(3)`](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html):
//! datagrams of `NAME=value` lines to the socket that the variable `NOTIFY_SOCKET` names. systemd
//! requires them for units of `Type=notify`; any other parent process can open such a socket too.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_core::config::Env;
use postern_core::health::Health;

/// The notification socket of the service manager that started this process.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
}

/// Maximum time for one notification. A service manager that does not read its socket must not
/// block the process; a notification that does not fit into the socket buffer is dropped.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

impl ServiceManager {
    /// Opens the socket that `NOTIFY_SOCKET` names. Returns `None` if the variable is not set or
    /// the name is not a valid socket address.
    #[must_use]
    pub fn from_env(env: &Env) -> Option<Self> {
        let name = env.get("NOTIFY_SOCKET")?;
        let opened = socket_address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_TIMEOUT))?;
            Ok(Self { socket, address })
        });
        let warn = |error: &_| tracing::warn!(%error, "NOTIFY_SOCKET cannot be used");
        opened.inspect_err(warn).ok()
    }

    /// Sends `READY=1` with this process as the main process of its unit.
    ///
    /// [`ServiceManager::report_health`] sends it as well. A process that takes over from a
    /// running one calls this first, because the old process exits as soon as the takeover is
    /// confirmed.
    pub fn notify_ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}", std::process::id()));
    }

    /// Sends `READY=1`, then `STATUS=` for each change of the health, and `STOPPING=1` at shutdown.
    ///
    /// Called once the sockets are bound and the process is assembled. `READY=1` does not wait for
    /// every component to be ready: a restart by the service manager would not repair an issuer
    /// that is unavailable. `STATUS=ready` corresponds to a 200 of `/readyz`.
    pub async fn report_health(self, health: Health, shutdown: CancellationToken) {
        self.notify_ready();
        let mut parts = health.watch();
        loop {
            parts.mark_unchanged();
            self.send(&format!("STATUS={}", health.to_string().replace('\n', " ")));
            tokio::select! {
                () = shutdown.cancelled() => break,
                Ok(()) = parts.changed() => {}
            }
        }
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, lines: &str) {
        if let Err(error) = self.socket.send_to_addr(lines.as_bytes(), &self.address) {
            tracing::debug!(%error, "service manager notification failed");
        }
    }
}

/// Parses a socket name: a path, or `@` followed by an abstract name (Linux).
fn socket_address(name: &str) -> std::io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.strip_prefix('@') {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    SocketAddr::from_pathname(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(socket: &tokio::net::UnixDatagram) -> String {
        let mut datagram = [0; 512];
        let length = socket.recv(&mut datagram).await.expect("a datagram");
        String::from_utf8_lossy(&datagram[..length]).into_owned()
    }

    #[tokio::test]
    async fn start_health_changes_and_stop_are_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("notify");
        let socket = tokio::net::UnixDatagram::bind(&name).expect("bound");
        let env = Env::from([("NOTIFY_SOCKET", name.to_str().expect("UTF-8"))]);
        let (health, shutdown) = (Health::new(), CancellationToken::new());
        let keys = health.check("keys");
        let reporting = ServiceManager::from_env(&env)
            .expect("a socket")
            .report_health(health, shutdown.clone());
        let reporting = tokio::spawn(reporting);
        let ready = format!("READY=1\nMAINPID={}", std::process::id());
        assert_eq!(next(&socket).await, ready);
        assert_eq!(next(&socket).await, "STATUS=not ready; keys: starting");
        keys.set_ok();
        assert_eq!(next(&socket).await, "STATUS=ready");
        keys.set_ok();
        keys.set_failed("refused");
        let failed = "STATUS=not ready; keys: refused";
        assert_eq!(
            next(&socket).await,
            failed,
            "unchanged health is not reported"
        );
        shutdown.cancel();
        assert_eq!(next(&socket).await, "STOPPING=1\nSTATUS=stopping");
        reporting.await.expect("the task ends");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn abstract_socket_name_is_supported() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("postern-{}", uuid::Uuid::new_v4().simple());
        let bound = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&bound).expect("bound");
        socket.set_nonblocking(true).expect("a socket");
        let socket = tokio::net::UnixDatagram::from_std(socket).expect("a socket");
        let env = Env::from([("NOTIFY_SOCKET", format!("@{name}").as_str())]);
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let manager = ServiceManager::from_env(&env).expect("a socket");
        manager.report_health(Health::new(), shutdown).await;
        assert!(next(&socket).await.starts_with("READY=1"));
    }

    #[tokio::test]
    async fn missing_or_dead_socket_does_not_block() {
        assert!(ServiceManager::from_env(&Env::default()).is_none());
        let env = Env::from([("NOTIFY_SOCKET", "/nonexistent/socket")]);
        let manager = ServiceManager::from_env(&env).expect("an unconnected socket");
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        manager.report_health(Health::new(), shutdown).await;
    }
}
