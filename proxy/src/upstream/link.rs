//! A connection to one address of an upstream that speaks plain HTTP/1.1, and those that wait for
//! their next request.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr_iter;
use pingora_core::{Error, ErrorType, OrErr, Result, RetryType};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use crate::upstream::answer::{Answer, AnswerFault, Body};

/// Bytes of the head of an answer, as Pingora has it.
pub(super) const MOST_HEAD: usize = 1 << 20;

/// Room for one read while a head is waited for.
const HEAD_READ: usize = 4 << 10;

/// Room for one read of a body.
const BODY_READ: usize = 32 << 10;

/// So many connections to one address wait at most.
const MOST_KEPT: usize = 512;

/// One connection. Errors are Pingora's, as of an upstream.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    inbound: BytesMut,
    /// How much of `inbound` has been searched for the end of a head.
    searched: usize,
    /// Whether `inbound` has grown to take a body.
    is_grown: bool,
}

/// Connections to one address that wait, each since when: the last one first, so that those which
/// are not needed age.
#[derive(Debug)]
pub(crate) struct Kept<C>(Mutex<Vec<(C, Instant)>>);

/// A connection that may wait for its next request.
pub(crate) trait Idle {
    /// Makes it ready to wait. Returns whether it may: nothing has come that no request asked for.
    fn rest(&mut self) -> bool;

    /// Whether nothing has come while it waited, the end included.
    fn is_quiet(&mut self) -> bool;
}

// === impl Link ===

impl Link {
    pub(crate) async fn connect(address: SocketAddr, within: Duration) -> Result<Self> {
        let stream = connect(address, within).await.map_err(Error::into_up)?;
        let _best_effort = stream.set_nodelay(true);
        Ok(Self {
            stream,
            inbound: BytesMut::new(),
            searched: 0,
            is_grown: false,
        })
    }

    pub(super) fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.stream)
    }

    /// Lets the kernel end the connection once the other side has taken nothing for so long:
    /// Pingora waits for an answer even after a write of a body that took too long.
    pub(super) fn end_if_nothing_is_taken_for(&self, within: Duration) {
        let millis = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let _best_effort = rustix::net::sockopt::set_tcp_user_timeout(&self.stream, millis);
    }

    /// Sends all of `data`.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut BytesMut,
    ) -> Poll<Result<()>> {
        while !data.is_empty() {
            let error = match ready!(Pin::new(&mut self.stream).poll_write(cx, data)) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(written) => {
                    data.advance(written);
                    continue;
                }
                Err(error) => error,
            };
            return Poll::Ready(Err(self.broken(ErrorType::WriteError, error)));
        }
        Poll::Ready(Ok(()))
    }

    /// The next head of an answer.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        to_head: bool,
    ) -> Poll<Result<Answer>> {
        loop {
            if self.has_head()
                && let Some(answer) = Answer::take(&mut self.inbound, to_head).map_err(unclear)?
            {
                self.searched = 0;
                return Poll::Ready(Ok(answer));
            }
            if self.inbound.len() > MOST_HEAD {
                return Poll::Ready(Err(unclear(AnswerFault)));
            }
            if ready!(self.poll_fill(cx, HEAD_READ))? == 0 {
                let gone = io::ErrorKind::UnexpectedEof.into();
                return Poll::Ready(Err(self.broken(ErrorType::ConnectionClosed, gone)));
            }
        }
    }

    /// Whether there may be a whole head: an empty line, or what cannot be the beginning of one.
    /// Each byte is looked at once, however small the pieces are in which it comes.
    fn has_head(&mut self) -> bool {
        let from = self.searched.saturating_sub(2);
        let fresh = &self.inbound[from..];
        let is_end = |at: usize| {
            let rest = &fresh[at + 1..];
            rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
        };
        let found = memchr_iter(b'\n', fresh).any(is_end);
        let is_other = !self
            .inbound
            .starts_with(&b"HTTP/"[..self.inbound.len().min(5)]);
        self.searched = self.inbound.len();
        found || is_other
    }

    /// The next part of a body; `None` when it is over.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Body,
    ) -> Poll<Result<Option<Bytes>>> {
        loop {
            if let Some(data) = body.take(&mut self.inbound).map_err(unclear)? {
                return Poll::Ready(Ok(Some(data)));
            }
            if *body == Body::Done {
                return Poll::Ready(Ok(None));
            }
            self.is_grown = true;
            // The client has had the head by now.
            let read = ready!(self.poll_fill(cx, BODY_READ)).map_err(|mut error| {
                error.set_retry(false);
                error
            });
            if read? == 0 {
                if *body == Body::UntilClose {
                    *body = Body::Done;
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(cut()));
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<usize>> {
        self.inbound.reserve(room);
        let read = ready!(pin!(self.stream.read_buf(&mut self.inbound)).poll(cx));
        Poll::Ready(read.map_err(|error| self.broken(ErrorType::ReadError, error)))
    }

    /// A connection that had waited may be closed by the origin at any time; nothing has been
    /// answered then.
    fn broken(&self, kind: ErrorType, error: io::Error) -> Box<Error> {
        let mut error = Error::because(kind, "on a connection to an upstream", error).into_up();
        if self.inbound.is_empty() {
            error.retry = RetryType::ReusedOnly;
        }
        error
    }
}

impl Idle for Link {
    fn rest(&mut self) -> bool {
        if std::mem::take(&mut self.is_grown) && self.inbound.is_empty() {
            self.inbound = BytesMut::new();
        }
        self.inbound.is_empty()
    }

    /// The kernel is asked: what the runtime knows is as old as its last look.
    fn is_quiet(&mut self) -> bool {
        let mut space = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        self.inbound.is_empty()
            && recv(&self.stream, &mut space, flags).is_err_and(|error| error == Errno::WOULDBLOCK)
    }
}

/// A connection, within the time for it.
async fn connect(address: SocketAddr, within: Duration) -> Result<TcpStream> {
    tokio::time::timeout(within, TcpStream::connect(address))
        .await
        .or_err(ErrorType::ConnectTimedout, "while connecting")?
        .map_err(|error| {
            let kind = match error.kind() == io::ErrorKind::ConnectionRefused {
                true => ErrorType::ConnectRefused,
                false => ErrorType::ConnectError,
            };
            Error::because(kind, "while connecting", error)
        })
}

fn unclear(_fault: AnswerFault) -> Box<Error> {
    Error::explain(
        ErrorType::InvalidHTTPHeader,
        "an answer that cannot be understood",
    )
    .into_up()
}

fn cut() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "before the end of the answer").into_up()
}

// === impl Kept ===

impl<C> Default for Kept<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Idle> Kept<C> {
    /// A connection that can carry a request now.
    pub(crate) fn take(&self, idle: Duration) -> Option<C> {
        loop {
            let (mut connection, since) = self.lock().pop()?;
            if since.elapsed() < idle && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose answer had been read whole `now`.
    pub(crate) fn keep(&self, mut connection: C, now: Instant) {
        if !connection.rest() {
            return;
        }
        let mut kept = self.lock();
        if kept.len() < MOST_KEPT {
            kept.push((connection, now));
        }
    }

    /// Closes those that have waited for too long, and those that their origin has closed.
    pub(crate) fn sweep(&self, idle: Duration) {
        let mut kept = std::mem::take(&mut *self.lock());
        kept.retain_mut(|(connection, since)| since.elapsed() < idle && connection.is_quiet());
        let mut now = self.lock();
        let newer = std::mem::replace(&mut *now, kept);
        now.extend(newer);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(C, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
