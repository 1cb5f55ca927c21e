//! Zero-downtime upgrade: the listening sockets are handed from the old process to the new one.
//!
//! The old process listens on a Unix socket. A new one, started with `--take-over`, connects, receives the
//! listening sockets (SCM_RIGHTS) and begins to accept beside the old one; then it says so, and the old process
//! drains and ends. The queue of a socket belongs to both, so no connection is lost in between.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use postern_common::Shutdown;
use postern_common::exit::Exit;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::net::TcpListener;

use crate::app::Listeners;

/// Sockets that one hand-over can carry.
const MOST: usize = 64;

/// How long each side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the new process says once it serves.
const SERVING: &[u8] = b"serving\n";

/// Waits for the process that takes over.
#[derive(Debug)]
pub(crate) struct Heir {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
    has_admin: bool,
}

/// A taken-over set of sockets, and the way to tell that they are served.
#[derive(Debug)]
pub struct Inheritance {
    /// The sockets.
    pub listeners: Listeners,
    old: UnixStream,
}

impl Heir {
    /// Listens on `path`; what was left there by a process that is gone is removed.
    pub(crate) fn wait_at(path: &Path, listeners: &Listeners) -> io::Result<Self> {
        let all = listeners.public.iter().chain(&listeners.admin);
        let sockets: Vec<OwnedFd> =
            all.map(|listener| listener.as_fd().try_clone_to_owned()).collect::<Result<_, _>>()?;
        let own = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
        let _not_there = std::fs::remove_file(&own);
        let listener = UnixListener::bind(&own)?;
        // Renamed into place, so that whoever connects meets a socket that listens.
        std::fs::rename(&own, path)?;
        Ok(Self { listener, sockets, has_admin: listeners.admin.is_some() })
    }

    /// Hands the sockets to whoever asks, and begins the stop once they are served there.
    pub(crate) fn run(self, shutdown: &Shutdown) {
        loop {
            let Ok((stream, _)) = self.listener.accept() else { return };
            match self.hand_to(stream) {
                Ok(()) => {
                    tracing::info!("another process has taken over");
                    return shutdown.begin();
                }
                Err(error) => tracing::warn!(%error, "the process that wanted to take over did not"),
            }
        }
    }

    fn hand_to(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("too many sockets"));
        }
        let kind = [u8::from(self.has_admin)];
        rustix::net::sendmsg(&stream, &[IoSlice::new(&kind)], &mut control, SendFlags::empty())?;
        let mut answer = vec![0; SERVING.len()];
        stream.read_exact(&mut answer)?;
        if answer == SERVING { Ok(()) } else { Err(io::Error::other("an unknown answer")) }
    }
}

impl Inheritance {
    /// Takes over from the process that waits at `path`.
    ///
    /// # Errors
    /// Status 69 if none does.
    pub fn take(path: &Path) -> Result<Self, Exit> {
        Self::receive(path)
            .map_err(|error| Exit::unavailable(format!("{}: cannot take over: {error}", path.display())))
    }

    fn receive(path: &Path) -> io::Result<Self> {
        let old = UnixStream::connect(path)?;
        old.set_read_timeout(Some(TIMEOUT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut kind = [0];
        rustix::net::recvmsg(&old, &mut [IoSliceMut::new(&mut kind)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut listeners = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = message {
                for socket in sockets {
                    let listener = std::net::TcpListener::from(socket);
                    listener.set_nonblocking(true)?;
                    listeners.push(TcpListener::from_std(listener)?);
                }
            }
        }
        let admin = if kind == [1] { listeners.pop() } else { None };
        Ok(Self { listeners: Listeners { public: listeners, admin }, old })
    }

    /// Tells the old process that its sockets are served.
    pub(crate) fn announce(mut old: UnixStream) {
        if let Err(error) = old.write_all(SERVING) {
            tracing::warn!(%error, "cannot tell the old process that it is done");
        }
    }

    /// The sockets, and what [`crate::App::succeeds`] takes.
    #[must_use]
    pub fn into_parts(self) -> (Listeners, UnixStream) {
        (self.listeners, self.old)
    }
}
