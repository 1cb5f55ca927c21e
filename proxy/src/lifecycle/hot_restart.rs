//! Hot restart: listening sockets are passed from a running process to a new one without refusing
//! connections.
//!
//! The running process listens on a Unix socket. A new process, started with `--take-over`,
//! connects and receives the file descriptors of the listening sockets (SCM_RIGHTS). When the new
//! process is ready, it reports that, and the running process confirms, if it still waits. The new
//! process then reports that it serves and starts accepting, while the old one drains and exits.
//! Both share the accept queues, so that no connection is lost. Without a confirmation the old
//! process keeps accepting connections and the new one exits.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use postern_core::backoff::Backoff;
use postern_core::exit::Exit;
use postern_core::files::{ALL_BUT_OWNER, private_folder};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Uid, geteuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixListener;

use crate::lifecycle::socket_activation::{InheritedSockets, Listeners};

/// Maximum number of sockets that can be passed.
const MAX_SOCKETS: usize = 64;

/// Timeout for receiving each message from the new process, and the sockets from the running one.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the new process to become ready after it has received the sockets; shorter than
/// [`PEER_TIMEOUT`].
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for receiving the confirmation from the running process.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Delays after failed hand-offs.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// Sent by the new process when it is ready.
const READY_MESSAGE: &[u8] = b"ready\n";

/// Sent by the running process to confirm the hand-off.
const COMMIT_MESSAGE: &[u8] = b"go\n";

/// Sent by the new process when it serves.
const SERVING_MESSAGE: &[u8] = b"serving\n";

/// Passes the listening sockets to a new process.
#[derive(Debug)]
pub(crate) struct ListenerHandoff {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
}

/// The listening sockets of a running process, and the connection to it.
#[derive(Debug)]
pub struct InheritedListeners {
    /// The sockets.
    pub sockets: InheritedSockets,
    /// The argument for [`crate::App::take_over`].
    pub previous: PreviousProcess,
}

/// The running process, which serves until this one is ready.
#[derive(Debug)]
pub struct PreviousProcess {
    pub(crate) stream: UnixStream,
    pub(crate) ready_deadline: Instant,
}

impl ListenerHandoff {
    /// Listens on `path`, replacing a socket of a process that has exited. Only the user of this
    /// process and root can connect: a folder that other users can access is rejected.
    pub(crate) fn listen(path: &Path, listeners: &Listeners) -> io::Result<Self> {
        let folder = parent_folder(path);
        private_folder(folder, ALL_BUT_OWNER)
            .map_err(|error| with_context(&folder.display().to_string(), &error))?;
        let all = listeners.public.iter().chain(&listeners.admin);
        let sockets: Vec<OwnedFd> = all
            .map(|listener| listener.as_fd().try_clone_to_owned())
            .collect::<Result<_, _>>()?;
        // Renamed, so that the socket is never visible before it listens. Only the owner can access
        // its folder.
        let own = folder.join(format!(".{}", std::process::id()));
        let _absent = std::fs::remove_file(&own);
        let listener = UnixListener::bind(&own)?;
        std::fs::set_permissions(&own, Permissions::from_mode(0o600))?;
        std::fs::rename(&own, path)?;
        Ok(Self { listener, sockets })
    }

    /// Passes the sockets to a new process and cancels `handed_over` once the new process serves.
    /// The sockets are closed at `stop`, because clients would otherwise be queued without being
    /// accepted.
    pub(crate) async fn run(self, handed_over: CancellationToken, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.hand_off() => handed_over.cancel(),
        }
    }

    async fn hand_off(&self) {
        let mut delays = RETRY_DELAYS.delays();
        loop {
            let result = match self.listener.accept().await {
                Ok((stream, _)) => self.hand_off_to(stream).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => return tracing::info!("hot restart completed"),
                Err(error) => {
                    tracing::warn!(%error, "hot restart failed, this process keeps serving");
                }
            }
            tokio::time::sleep(delays.next_delay()).await;
        }
    }

    async fn hand_off_to(&self, mut stream: tokio::net::UnixStream) -> io::Result<()> {
        check_peer(&stream)?;
        stream.writable().await?;
        stream.try_io(Interest::WRITABLE, || self.send_sockets(&stream))?;
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
        tracing::info!(
            sockets = self.sockets.len(),
            process,
            "hot restart: listening sockets passed"
        );
        expect_message(&mut stream, READY_MESSAGE, PEER_TIMEOUT).await?;
        stream.write_all(COMMIT_MESSAGE).await?;
        expect_message(&mut stream, SERVING_MESSAGE, PEER_TIMEOUT).await
    }

    fn send_sockets(&self, stream: &tokio::net::UnixStream) -> io::Result<()> {
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("too many sockets"));
        }
        // File descriptors are sent with at least one byte of data.
        rustix::net::sendmsg(
            stream,
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::empty(),
        )?;
        Ok(())
    }
}

impl InheritedListeners {
    /// Receives the listening sockets from the process that listens on `path`.
    ///
    /// # Errors
    /// Status 69 if there is none.
    pub fn take(path: &Path) -> Result<Self, Exit> {
        Self::receive(path).map_err(|error| {
            Exit::unavailable(format!("{}: hot restart failed: {error}", path.display()))
        })
    }

    fn receive(path: &Path) -> io::Result<Self> {
        let previous = UnixStream::connect(path)?;
        check_peer(&previous)?;
        previous.set_read_timeout(Some(PEER_TIMEOUT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        rustix::net::recvmsg(
            &previous,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                sockets.extend(passed.map(std::net::TcpListener::from));
            }
        }
        if sockets.is_empty() {
            return Err(io::Error::other("no socket was received"));
        }
        Ok(Self {
            sockets: InheritedSockets(sockets),
            previous: PreviousProcess {
                stream: previous,
                ready_deadline: Instant::now() + READY_TIMEOUT,
            },
        })
    }
}

impl PreviousProcess {
    /// Performs the hand-off: reports readiness, waits for the confirmation, reports serving.
    /// `committed` is called after the confirmation and before the running process exits.
    ///
    /// # Errors
    /// The running process does not confirm: it keeps serving. Or it closes the connection after
    /// its confirmation. In both cases this process must not serve.
    pub(crate) async fn commit(self, committed: impl FnOnce()) -> io::Result<()> {
        let mut stream = self
            .request_confirmation()
            .await
            .map_err(|error| with_context("no confirmation from the running process", &error))?;
        committed();
        stream.write_all(SERVING_MESSAGE).await.map_err(|error| {
            with_context(
                "the running process disconnected after its confirmation",
                &error,
            )
        })
    }

    async fn request_confirmation(self) -> io::Result<tokio::net::UnixStream> {
        self.stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.stream)?;
        stream.write_all(READY_MESSAGE).await?;
        expect_message(&mut stream, COMMIT_MESSAGE, REPLY_TIMEOUT).await?;
        Ok(stream)
    }
}

fn with_context(context: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{context}: {error}"))
}

pub(crate) fn parent_folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Rejects a process of another user, which might pass other sockets or take these.
fn check_peer(stream: &impl AsFd) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if is_trusted(peer.uid, geteuid()) {
        return Ok(());
    }
    let detail = format!(
        "process {} belongs to user {}",
        peer.pid.as_raw_nonzero(),
        peer.uid.as_raw()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, detail))
}

/// Returns whether the peer runs as the same user, or as root.
fn is_trusted(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// Receives one message, which must be `message`.
async fn expect_message(
    stream: &mut tokio::net::UnixStream,
    message: &[u8],
    timeout: Duration,
) -> io::Result<()> {
    let mut received = vec![0; message.len()];
    tokio::time::timeout(timeout, stream.read_exact(&mut received)).await??;
    if received == message {
        Ok(())
    } else {
        Err(io::Error::other("unexpected message"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("file exists").mode() & 0o777
    }

    #[tokio::test]
    async fn socket_and_folder_are_private() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("run").join("proxy.sock");
        let listeners = Listeners {
            public: Vec::new(),
            admin: None,
        };
        let handoff = ListenerHandoff::listen(&path, &listeners).expect("listens");
        assert_eq!((mode(&path), mode(parent_folder(&path))), (0o600, 0o700));
        let left = std::fs::read_dir(parent_folder(&path)).expect("a folder");
        assert_eq!(left.count(), 1, "only the socket remains");
        drop(handoff);
        for open in [0o777, 0o775, 0o755, 0o750, 0o702] {
            std::fs::set_permissions(parent_folder(&path), Permissions::from_mode(open))
                .expect("own folder");
            let error = ListenerHandoff::listen(&path, &listeners).expect_err("unsafe folder");
            let holds = error.to_string().contains("must have at most 0700");
            assert!(holds, "{error}");
        }
    }

    #[test]
    fn peer_of_another_user_is_rejected() {
        let (one, other) = (Uid::from_raw(1000), Uid::from_raw(1001));
        assert!(is_trusted(one, one) && is_trusted(Uid::ROOT, one));
        assert!(!is_trusted(other, one) && !is_trusted(one, Uid::ROOT));
        let (near, _far) = UnixStream::pair().expect("a pair");
        check_peer(&near).expect("same user");
    }
}
