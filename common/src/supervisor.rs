//! What the service manager that started us is told: that we serve, how we are, that we stop.
//!
//! The protocol is that of
//! [`sd_notify(3)`](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html):
//! datagrams of `NAME=value` lines to the socket that the variable `NOTIFY_SOCKET` names. systemd
//! wants them of units of `Type=notify`; whoever starts a process and wants to know when it serves
//! can open such a socket, too.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::admin::Health;
use crate::config::Env;

/// Whoever started this process and wants to hear of it.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
}

/// A supervisor that does not read must not hold us up: what does not fit into its socket is lost,
/// and so is what comes after a socket that has gone.
const PATIENCE: Duration = Duration::from_millis(100);

impl Supervisor {
    /// The one whose socket `NOTIFY_SOCKET` names; `None` where nobody wants to hear, or where it
    /// cannot be reached.
    #[must_use]
    pub fn of(env: &Env) -> Option<Self> {
        let name = env.get("NOTIFY_SOCKET")?;
        let reached = address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(Self { socket, address })
        });
        reached
            .inspect_err(
                |error| tracing::warn!(%error, "cannot reach the socket that NOTIFY_SOCKET names"),
            )
            .ok()
    }

    /// Says that the process serves, and is the main one of its unit from now on.
    /// [`Supervisor::follow`] says it too; to be called before it by a successor, whose predecessor
    /// ends as soon as it knows.
    pub fn announce(&self) {
        self.tell(&format!("READY=1\nMAINPID={}", std::process::id()));
    }

    /// Says that the process serves, then every change of its health in words, and at last that it
    /// stops. To be called when the sockets are bound and everything is built.
    ///
    /// The process is not `READY=1` only once every part is: a unit whose issuer is away is up all
    /// the same, and starting it again would not help. `STATUS=ready` is what `/readyz` answers
    /// with 200.
    pub async fn follow(self, health: Health, shutdown: CancellationToken) {
        self.announce();
        let mut parts = health.watch();
        loop {
            parts.mark_unchanged();
            self.tell(&format!("STATUS={}", health.to_string().replace('\n', " ")));
            tokio::select! {
                () = shutdown.cancelled() => break,
                Ok(()) = parts.changed() => {}
            }
        }
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    fn tell(&self, lines: &str) {
        if let Err(error) = self.socket.send_to_addr(lines.as_bytes(), &self.address) {
            tracing::debug!(%error, "the supervisor does not listen");
        }
    }
}

/// A path, or after `@` a name without a file.
fn address(name: &str) -> std::io::Result<SocketAddr> {
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
    async fn a_supervisor_hears_of_the_start_of_every_change_and_of_the_stop() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("notify");
        let socket = tokio::net::UnixDatagram::bind(&name).expect("bound");
        let env = Env::from([("NOTIFY_SOCKET", name.to_str().expect("UTF-8"))]);
        let (health, shutdown) = (Health::new(), CancellationToken::new());
        let keys = health.check("keys");
        let following = Supervisor::of(&env)
            .expect("a socket")
            .follow(health, shutdown.clone());
        let following = tokio::spawn(following);
        assert_eq!(
            next(&socket).await,
            format!("READY=1\nMAINPID={}", std::process::id())
        );
        assert_eq!(next(&socket).await, "STATUS=not ready; keys: starting");
        keys.set_ok();
        assert_eq!(next(&socket).await, "STATUS=ready");
        keys.set_ok();
        keys.set_failed("refused");
        assert_eq!(
            next(&socket).await,
            "STATUS=not ready; keys: refused",
            "what did not change is not told"
        );
        shutdown.cancel();
        assert_eq!(next(&socket).await, "STOPPING=1\nSTATUS=stopping");
        following.await.expect("ended");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_name_without_a_file_is_a_socket_too() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("postern-{}", uuid::Uuid::new_v4().simple());
        let bound = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&bound).expect("bound");
        socket.set_nonblocking(true).expect("a socket");
        let socket = tokio::net::UnixDatagram::from_std(socket).expect("a socket");
        let env = Env::from([("NOTIFY_SOCKET", format!("@{name}").as_str())]);
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        Supervisor::of(&env)
            .expect("a socket")
            .follow(Health::new(), shutdown)
            .await;
        assert!(next(&socket).await.starts_with("READY=1"));
    }

    #[tokio::test]
    async fn nobody_to_tell_is_no_reason_to_wait() {
        assert!(Supervisor::of(&Env::default()).is_none());
        let away = Supervisor::of(&Env::from([("NOTIFY_SOCKET", "/nowhere/at/all")]))
            .expect("a socket of ours");
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        away.follow(Health::new(), shutdown).await;
    }
}
