//! Zero-downtime upgrade: the listening sockets are handed from the old process to the new one.
//!
//! The old process listens on a Unix socket. A new one, started with `--take-over`, connects, receives the
//! listening sockets (SCM_RIGHTS) and begins to accept beside the old one; then it says so, and the old process
//! drains and ends. The queue of a socket belongs to both, so no connection is lost in between.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postern_common::Shutdown;
use postern_common::exit::Exit;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixListener;

use crate::app::Listeners;
use crate::sockets::Sockets;

/// Sockets that one hand-over can carry.
const MOST: usize = 64;

/// How long each side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait after one that did not.
const PAUSE: Duration = Duration::from_millis(100);

/// What the new process says once it serves.
const SERVING: &[u8] = b"serving\n";

/// Waits for the process that takes over.
#[derive(Debug)]
pub(crate) struct Heir {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
}

/// A taken-over set of sockets, and the way to tell that they are served.
#[derive(Debug)]
pub struct Inheritance {
    sockets: Sockets,
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
        Ok(Self { listener, sockets })
    }

    /// Hands the sockets to whoever asks, and begins `taken_over` once they are served there. At the stop they are
    /// closed here as well, or clients would be let into a queue that nobody empties.
    pub(crate) async fn run(self, taken_over: Shutdown, stop: Shutdown) {
        tokio::select! {
            () = stop.begun() => {}
            () = self.hand_over() => taken_over.begin(),
        }
    }

    async fn hand_over(&self) {
        loop {
            let handed = match self.listener.accept().await {
                Ok((stream, _)) => self.hand_to(stream).await,
                Err(error) => Err(error),
            };
            match handed {
                Ok(()) => return tracing::info!("another process has taken over"),
                Err(error) => tracing::warn!(%error, "the process that wanted to take over did not"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn hand_to(&self, mut stream: tokio::net::UnixStream) -> io::Result<()> {
        stream.writable().await?;
        stream.try_io(Interest::WRITABLE, || self.send(&stream))?;
        let mut answer = [0; SERVING.len()];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut answer)).await??;
        if answer == SERVING { Ok(()) } else { Err(io::Error::other("an unknown answer")) }
    }

    fn send(&self, stream: &tokio::net::UnixStream) -> io::Result<()> {
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("too many sockets"));
        }
        // They need a byte to travel with.
        rustix::net::sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
        Ok(())
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
        let mut byte = [0];
        rustix::net::recvmsg(&old, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                sockets.extend(passed.map(std::net::TcpListener::from));
            }
        }
        if sockets.is_empty() {
            return Err(io::Error::other("it passed no socket"));
        }
        Ok(Self { sockets: Sockets(sockets), old })
    }

    /// Tells the old process that its sockets are served.
    pub(crate) fn announce(mut old: UnixStream) {
        if let Err(error) = old.write_all(SERVING) {
            tracing::warn!(%error, "cannot tell the old process that it is done");
        }
    }

    /// The sockets, and what [`crate::App::take_over`] takes.
    #[must_use]
    pub fn into_parts(self) -> (Sockets, UnixStream) {
        (self.sockets, self.old)
    }
}
