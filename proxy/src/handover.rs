//! Zero-downtime upgrade: the listening sockets are handed from the old process to the new one.
//!
//! The old process listens on a Unix socket. A new one, started with `--take-over`, connects and receives the
//! listening sockets (SCM_RIGHTS). Once it is ready it says so; the old one, if it still waits, answers; then the new
//! one says that it serves, and begins to accept at once, while the old one drains and ends. The queue of a socket
//! belongs to both, so no connection is lost in between. Whoever gets no answer leaves the sockets to the old one:
//! there are never two that serve, nor none.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postern_common::Shutdown;
use postern_common::exit::Exit;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixListener;

use crate::app::Listeners;
use crate::sockets::Sockets;

/// Sockets that one hand-over can carry.
const MOST: usize = 64;

/// How long the old process waits for the new one, and the new one for the sockets.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a successor may take to be ready, from the sockets on: its predecessor waits for longer.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How long the new process waits for an answer of the old one.
const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait after one that did not.
const PAUSE: Duration = Duration::from_millis(100);

/// What the new process says once it is ready.
const READY: &[u8] = b"ready\n";

/// What the old one says to that.
const GO: &[u8] = b"go\n";

/// What the new process says when nothing keeps it from serving any more.
const SERVING: &[u8] = b"serving\n";

/// Waits for the process that takes over.
#[derive(Debug)]
pub(crate) struct Heir {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
}

/// A taken-over set of sockets, and the process that they came from.
#[derive(Debug)]
pub struct Inheritance {
    sockets: Sockets,
    old: Predecessor,
}

/// The process that serves until its successor is ready.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    /// When this process has to be ready.
    pub(crate) until: Instant,
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
        hear(&mut stream, READY, TIMEOUT).await?;
        stream.write_all(GO).await?;
        hear(&mut stream, SERVING, TIMEOUT).await
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
        let old = Predecessor::new(old, Instant::now() + READY_WITHIN);
        Ok(Self { sockets: Sockets(sockets), old })
    }

    /// The sockets, and what [`crate::App::take_over`] takes.
    #[must_use]
    pub fn into_parts(self) -> (Sockets, Predecessor) {
        (self.sockets, self.old)
    }
}

impl Predecessor {
    pub(crate) fn new(stream: UnixStream, until: Instant) -> Self {
        Self { stream, until }
    }

    /// Tells the old process that its sockets are served from now on, and calls `committed` once it is known to
    /// listen: between its answer and its end.
    ///
    /// # Errors
    /// If it does not listen any more: then it serves, and this process must not.
    pub(crate) async fn relieve(self, committed: impl FnOnce()) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.stream)?;
        stream.write_all(READY).await?;
        hear(&mut stream, GO, ANSWER).await?;
        committed();
        stream.write_all(SERVING).await
    }
}

/// Waits for these words.
async fn hear(stream: &mut tokio::net::UnixStream, words: &[u8], most: Duration) -> io::Result<()> {
    let mut heard = vec![0; words.len()];
    tokio::time::timeout(most, stream.read_exact(&mut heard)).await??;
    if heard == words { Ok(()) } else { Err(io::Error::other("an unknown answer")) }
}
