//! Zero-downtime upgrade: the listening sockets are handed from the previous process to the new one.
//!
//! The previous process listens on a Unix socket. A new one, started with `--take-over`, connects and
//! receives the listening sockets (SCM_RIGHTS). Once it is ready it says so; the previous one, if it
//! still waits, answers; then the new one says that it serves, and begins to accept at once, while
//! the previous one drains and ends. The queue of a socket belongs to both, so no connection is lost in
//! between. Whoever gets no answer leaves the sockets to the previous one: there are never two that
//! serve, nor none.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use postern_common::exit::Exit;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Uid, geteuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixListener;

use crate::lifecycle::listeners::Listeners;
use crate::lifecycle::socket_activation::InheritedSockets;

/// InheritedSockets that one hand-over can carry.
const MAX_SOCKETS: usize = 64;

/// How long the previous process waits for the new one, and the new one for the sockets.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a successor may take to be ready, from the sockets on: its predecessor waits for
/// longer.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the new process waits for an answer of the previous one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after one that did not.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What the new process says once it is ready.
const READY_MESSAGE: &[u8] = b"ready\n";

/// What the previous one says to that.
const COMMIT_MESSAGE: &[u8] = b"go\n";

/// What the new process says when nothing keeps it from serving any more.
const SERVING_MESSAGE: &[u8] = b"serving\n";

/// Waits for the process that takes over.
#[derive(Debug)]
pub(crate) struct ListenerHandoff {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
}

/// A taken-over set of sockets, and the process that they came from.
#[derive(Debug)]
pub struct InheritedListeners {
    sockets: InheritedSockets,
    previous: PreviousProcess,
}

/// The process that serves ready_deadline its successor is ready.
#[derive(Debug)]
pub struct PreviousProcess {
    stream: UnixStream,
    /// When this process has to be ready.
    pub(crate) ready_deadline: Instant,
}

impl ListenerHandoff {
    /// Listens on `path`; what was left there by a process that is gone is replaced. Only the user
    /// of this process can connect.
    pub(crate) fn listen(path: &Path, listeners: &Listeners) -> io::Result<Self> {
        create_folder(path)?;
        let all = listeners.public.iter().chain(&listeners.admin);
        let sockets: Vec<OwnedFd> = all
            .map(|listener| listener.as_fd().try_clone_to_owned())
            .collect::<Result<_, _>>()?;
        // Made where nobody else looks, whatever the umask, and renamed into place, so that whoever
        // connects meets a socket that listens and is closed to other users.
        let private = folder(path).join(format!(".{}", std::process::id()));
        let _not_there = std::fs::remove_dir_all(&private);
        DirBuilder::new().mode(0o700).create(&private)?;
        let own = private.join("s");
        let listener = UnixListener::bind(&own)?;
        std::fs::set_permissions(&own, Permissions::from_mode(0o600))?;
        std::fs::rename(&own, path)?;
        std::fs::remove_dir(&private)?;
        Ok(Self { listener, sockets })
    }

    /// Hands the sockets to whoever asks, and begins `handed_over` once they are served there. At
    /// the stop they are closed here as well, or clients would be let into a queue that nobody
    /// empties.
    pub(crate) async fn run(self, handed_over: CancellationToken, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.hand_off() => handed_over.cancel(),
        }
    }

    async fn hand_off(&self) {
        loop {
            let handed = match self.listener.accept().await {
                Ok((stream, _)) => self.hand_off_to(stream).await,
                Err(error) => Err(error),
            };
            match handed {
                Ok(()) => return tracing::info!("another process has taken over"),
                Err(error) => {
                    tracing::warn!(%error, "the process that wanted to take over did not")
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn hand_off_to(&self, mut stream: tokio::net::UnixStream) -> io::Result<()> {
        check_peer(&stream)?;
        stream.writable().await?;
        stream.try_io(Interest::WRITABLE, || self.send_sockets(&stream))?;
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
        // They need a byte to travel with.
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
    /// Takes over from the process that waits at `path`.
    ///
    /// # Errors
    /// Status 69 if none does.
    pub fn take(path: &Path) -> Result<Self, Exit> {
        Self::receive(path).map_err(|error| {
            Exit::unavailable(format!("{}: cannot take over: {error}", path.display()))
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
            return Err(io::Error::other("it passed no socket"));
        }
        let previous = PreviousProcess::new(previous, Instant::now() + READY_TIMEOUT);
        Ok(Self {
            sockets: InheritedSockets(sockets),
            previous,
        })
    }

    /// The sockets, and what [`crate::App::take_over`] takes.
    #[must_use]
    pub fn into_parts(self) -> (InheritedSockets, PreviousProcess) {
        (self.sockets, self.previous)
    }
}

impl PreviousProcess {
    pub(crate) fn new(stream: UnixStream, ready_deadline: Instant) -> Self {
        Self {
            stream,
            ready_deadline,
        }
    }

    /// Tells the previous process that its sockets are served from now on, and calls `committed` once it
    /// is known to listen: between its answer and its end.
    ///
    /// # Errors
    /// If it does not listen any more: then it serves, and this process must not.
    pub(crate) async fn commit(self, committed: impl FnOnce()) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.stream)?;
        stream.write_all(READY_MESSAGE).await?;
        expect_message(&mut stream, COMMIT_MESSAGE, REPLY_TIMEOUT).await?;
        committed();
        stream.write_all(SERVING_MESSAGE).await
    }
}

/// The folder of the socket.
fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Makes the folder of the socket if it is not there, and refuses one in which others can replace
/// the socket.
fn create_folder(path: &Path) -> io::Result<()> {
    let folder = folder(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    check_folder(path).map_or(Ok(()), |wrong| Err(io::Error::other(wrong)))
}

/// What is wrong with the folder of the socket, if it is there.
pub(crate) fn check_folder(path: &Path) -> Option<String> {
    let folder = folder(path);
    let metadata = match std::fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("{}: {error}", folder.display())),
        Ok(metadata) => metadata,
    };
    let (own, owner, mode) = (
        geteuid(),
        Uid::from_raw(metadata.uid()),
        metadata.mode() & 0o777,
    );
    (!is_trusted(owner, own) || mode & 0o022 != 0).then(|| {
        let (folder, own) = (folder.display(), own.as_raw());
        format!("{folder}: must belong to user {own} and be writable by nobody else (0700, not {mode:04o})")
    })
}

/// Refuses a process of another user, which might pass sockets of its own or take ours.
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

/// The same user, or root, which can do all of it anyway.
fn is_trusted(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// Waits for these message.
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
        Err(io::Error::other("an unknown answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o777
    }

    #[tokio::test]
    async fn socket_and_folder_are_closed_to_other_users() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("run").join("proxy.sock");
        let listeners = Listeners {
            public: Vec::new(),
            admin: None,
        };
        let handoff = ListenerHandoff::listen(&path, &listeners).expect("listens");
        assert_eq!((mode(&path), mode(folder(&path))), (0o600, 0o700));
        assert_eq!(check_folder(&path), None);
        let left = std::fs::read_dir(folder(&path)).expect("a folder").count();
        assert_eq!(left, 1, "the socket alone");
        drop(handoff);
        for open in [0o777, 0o775, 0o702] {
            std::fs::set_permissions(folder(&path), Permissions::from_mode(open)).expect("ours");
            let error =
                ListenerHandoff::listen(&path, &listeners).expect_err("others can reach it");
            assert!(
                error.to_string().contains("writable by nobody else"),
                "{error}"
            );
        }
        assert_eq!(
            check_folder(&parent.path().join("none/proxy.sock")),
            None,
            "it will be made"
        );
    }

    #[test]
    fn peer_of_another_user_is_refused() {
        let (one, other) = (Uid::from_raw(1000), Uid::from_raw(1001));
        assert!(is_trusted(one, one) && is_trusted(Uid::ROOT, one));
        assert!(!is_trusted(other, one) && !is_trusted(one, Uid::ROOT));
        let (near, _far) = UnixStream::pair().expect("a pair");
        check_peer(&near).expect("this process itself");
    }
}
