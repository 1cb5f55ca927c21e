//! How long one request may keep the gateway waiting, whichever protocol it came by.
//!
//! Pingora has no hook for this: while it waits for an upstream it keeps asking the client's side
//! whether the client is still there, and that question is answered with an error when the time is
//! over.

mod timer;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::config::ClientLimits;
pub(crate) use timer::{DeadlineTimer, StallWindow};

/// What the gateway's hooks say about the time of one request, and ask.
#[derive(Debug)]
pub(crate) struct RequestDeadline {
    created_at: Instant,
    /// Milliseconds after `created_at` at which the request must be over; the gateway sets it by route.
    deadline_ms: AtomicU64,
    /// How long the upstream may keep this side waiting, in milliseconds; 0 for no limit.
    upstream_timeout_ms: AtomicU64,
    /// Milliseconds after `created_at` since when it does: the choice of its address, the end of the
    /// request, or what it bytes_sent last.
    waiting_since_ms: AtomicU64,
    /// Whether that was a moment ago, so that the clock need not be read again.
    skip_next_progress: AtomicBool,
    /// Whether the whole request has arrived.
    request_complete: AtomicBool,
    /// Whether the client gave the request up.
    client_aborted: AtomicBool,
    /// Whether it is a gRPC call.
    is_grpc: AtomicBool,
    /// Whether the whole response has been written.
    response_complete: AtomicBool,
    /// What the response may hold while its reader is waited for.
    buffer_units: AtomicUsize,
    abort_reason: AtomicU8,
}

/// Why reading or writing was ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// The body is not framed as it should be.
    InvalidFraming = 1,
    /// The client sends or reads too slowly.
    ClientStalled = 2,
    /// The request took too long, and the client is being waited for.
    ClientDeadline = 3,
    /// The upstream bytes_sent nothing for too long.
    UpstreamTimeout = 4,
    /// The request took too long, and the client is not what it waits for.
    UpstreamDeadline = 5,
    /// The token of a tunnel expired.
    TokenExpired = 6,
    /// There is no room for what a slow reader has not taken.
    BufferExhausted = 7,
}

/// The directions in which nothing moves just now, and one timer for all of it.
#[derive(Default)]
pub(crate) struct SlowClientGuard {
    pub(crate) timer: DeadlineTimer,
    pub(crate) reading: Option<StallWindow>,
    writing: Option<StallWindow>,
    /// Since when the reader has not been waited for: it had taken all there was.
    paused_since: Option<Instant>,
    /// Of a tunnel: both directions together.
    tunnel_idle: Option<StallWindow>,
    /// Bytes that came from the client and went to it.
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}

// === impl RequestDeadline ===

impl RequestDeadline {
    pub(crate) fn new() -> Self {
        Self {
            created_at: Instant::now(),
            deadline_ms: AtomicU64::new(u64::MAX),
            upstream_timeout_ms: AtomicU64::new(0),
            waiting_since_ms: AtomicU64::new(0),
            skip_next_progress: AtomicBool::new(false),
            request_complete: AtomicBool::new(false),
            client_aborted: AtomicBool::new(false),
            is_grpc: AtomicBool::new(false),
            response_complete: AtomicBool::new(false),
            buffer_units: AtomicUsize::new(1),
            abort_reason: AtomicU8::new(0),
        }
    }

    /// When the connection, or the stream, began.
    pub(crate) fn created_at(&self) -> Instant {
        self.created_at
    }

    /// The next request of a connection: it must be over `after` from now on.
    pub(crate) fn start_request(&self, after: Duration, request_complete: bool) {
        self.set_timeout(after, Instant::now());
        self.upstream_timeout_ms.store(0, Ordering::Relaxed);
        self.skip_next_progress.store(false, Ordering::Relaxed);
        self.request_complete
            .store(request_complete, Ordering::Relaxed);
        self.abort_reason.store(0, Ordering::Relaxed);
        self.set_buffer_units(1);
    }

    /// The request must be over `after` from `now` on.
    pub(crate) fn set_timeout(&self, after: Duration, now: Instant) {
        self.deadline_ms.store(
            self.age_ms(now).saturating_add(millis(after)),
            Ordering::Relaxed,
        );
    }

    /// The upstream must send something at least every `within`, from `now` or from the end of the
    /// request on.
    pub(crate) fn expect_upstream(&self, within: Duration, now: Instant) {
        self.upstream_timeout_ms
            .store(millis(within).max(1), Ordering::Relaxed);
        self.waiting_since_ms
            .store(self.age_ms(now), Ordering::Relaxed);
    }

    /// The head of the answer came at `now`, and is about to be written: that is no progress of its
    /// own.
    pub(crate) fn note_response_head(&self, within: Duration, now: Instant) {
        self.expect_upstream(within, now);
        self.skip_next_progress.store(true, Ordering::Relaxed);
    }

    /// Something came from the upstream, or the last of the request went to it.
    pub(crate) fn note_progress(&self) {
        if self.upstream_timeout_ms.load(Ordering::Relaxed) != 0
            && !self.skip_next_progress.swap(false, Ordering::Relaxed)
        {
            self.waiting_since_ms
                .store(self.age_ms(Instant::now()), Ordering::Relaxed);
        }
    }

    /// The whole request has arrived: from now on the upstream is waited for.
    pub(crate) fn note_request_complete(&self) {
        self.request_complete.store(true, Ordering::Relaxed);
        self.note_progress();
    }

    /// Nothing ends the request any more: it has become a tunnel.
    pub(crate) fn clear(&self) {
        self.deadline_ms.store(u64::MAX, Ordering::Relaxed);
        self.upstream_timeout_ms.store(0, Ordering::Relaxed);
    }

    /// Whether the whole request has arrived.
    pub(crate) fn is_request_complete(&self) -> bool {
        self.request_complete.load(Ordering::Relaxed)
    }

    /// What the response may hold while its reader is waited for, in units of
    /// [`crate::downstream::response_buffers`].
    pub(crate) fn set_buffer_units(&self, units: usize) {
        self.buffer_units.store(units, Ordering::Relaxed);
    }

    /// What was set last; one at first.
    pub(crate) fn buffer_units(&self) -> usize {
        self.buffer_units.load(Ordering::Relaxed)
    }

    /// It is a gRPC call: a client that streams may pause for as long as the deadline lets it, and
    /// the end of the response is the end of the call.
    pub(crate) fn mark_grpc(&self) {
        self.is_grpc.store(true, Ordering::Relaxed);
    }

    /// Whether it is a gRPC call.
    pub(crate) fn is_grpc(&self) -> bool {
        self.is_grpc.load(Ordering::Relaxed)
    }

    /// The whole response of a stream has been written, if it has.
    pub(crate) fn note_response_complete(&self, answered: bool) {
        if answered {
            self.response_complete.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the whole response of a stream has been written: a client that resets it then gives
    /// nothing up.
    pub(crate) fn is_response_complete(&self) -> bool {
        self.response_complete.load(Ordering::Relaxed)
    }

    /// The client has given the request up, if it has.
    pub(crate) fn note_client_aborted(&self, gone: bool) {
        if gone && !self.is_response_complete() {
            self.client_aborted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the client gave the request up.
    pub(crate) fn is_client_aborted(&self) -> bool {
        self.client_aborted.load(Ordering::Relaxed)
    }

    /// Remembers why this side ends the request.
    pub(crate) fn set_abort_reason(&self, reason: AbortReason) {
        self.abort_reason.store(reason as u8, Ordering::Relaxed);
    }

    /// Why this side ended the request, if it did.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        match self.abort_reason.load(Ordering::Relaxed) {
            1 => Some(AbortReason::InvalidFraming),
            2 => Some(AbortReason::ClientStalled),
            3 => Some(AbortReason::ClientDeadline),
            4 => Some(AbortReason::UpstreamTimeout),
            5 => Some(AbortReason::UpstreamDeadline),
            6 => Some(AbortReason::TokenExpired),
            7 => Some(AbortReason::BufferExhausted),
            _ => None,
        }
    }

    fn age_ms(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.created_at))
    }

    fn expires_at(&self) -> Option<Instant> {
        match self.deadline_ms.load(Ordering::Relaxed) {
            u64::MAX => None,
            millis => self.created_at.checked_add(Duration::from_millis(millis)),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl SlowClientGuard ===

impl SlowClientGuard {
    /// The client is waited for: it has bytes_sent nothing that is not read yet.
    pub(crate) fn wait_for_body(&mut self) {
        let bytes = self.bytes_received;
        self.reading.get_or_insert_with(|| StallWindow {
            since: Instant::now(),
            bytes,
        });
    }

    /// The client is waited for: it takes nothing just now.
    pub(crate) fn wait_for_reader(&mut self) {
        let bytes = self.bytes_sent;
        let stall = self.writing.get_or_insert_with(|| StallWindow {
            since: Instant::now(),
            bytes,
        });
        if let Some(paused_since) = self.paused_since.take() {
            stall.since += paused_since.elapsed();
        }
    }

    /// The client has taken all there was. Whether it had been waited for: that time counts on when
    /// it is again, or who takes a little now and then would be slower than the least rate for
    /// ever.
    pub(crate) fn pause_reader_wait(&mut self) -> bool {
        let waited = self.writing.is_some() && self.paused_since.is_none();
        if waited {
            self.paused_since = Some(Instant::now());
        }
        waited
    }

    /// Whether the client is waited for to take what was written.
    pub(crate) fn is_waiting_for_reader(&self) -> bool {
        self.writing.is_some() && self.paused_since.is_none()
    }

    /// The next request owes nothing for the one before.
    pub(crate) fn reset(&mut self) {
        (self.reading, self.writing, self.paused_since) = (None, None, None);
    }

    /// Whether the client has kept us waiting for too long.
    pub(crate) fn poll(
        &mut self,
        request: &RequestDeadline,
        limits: &ClientLimits,
        cx: &mut Context<'_>,
    ) -> Poll<AbortReason> {
        let deadline = request.expires_at();
        let window = limits.stall_timeout;
        let least = limits.min_bytes_per_window();
        loop {
            let writing = self.writing.filter(|_| self.paused_since.is_none());
            let stalls = [self.reading, writing]
                .into_iter()
                .flatten()
                .map(|stall| stall.since + window);
            let Some(due) = stalls.chain(deadline).min() else {
                return Poll::Pending;
            };
            ready!(self.timer.poll(due, cx));
            if deadline.is_some_and(|deadline| deadline <= due) {
                let waits_for_client = self.reading.or(writing).is_some();
                return Poll::Ready(if waits_for_client {
                    AbortReason::ClientDeadline
                } else {
                    AbortReason::UpstreamDeadline
                });
            }
            let now = Instant::now();
            let writing = self
                .writing
                .as_mut()
                .filter(|_| self.paused_since.is_none());
            for (stall, bytes) in [
                (self.reading.as_mut(), self.bytes_received),
                (writing, self.bytes_sent),
            ] {
                match stall {
                    Some(stall) if stall.since + window <= now => {
                        if bytes - stall.bytes < least {
                            return Poll::Ready(AbortReason::ClientStalled);
                        }
                        *stall = StallWindow { since: now, bytes };
                    }
                    Some(_) | None => {}
                }
            }
        }
    }

    /// While a tunnel is silent: whether it has been so for too long. A reader that takes nothing
    /// counts as before.
    pub(crate) fn poll_tunnel(
        &mut self,
        request: &RequestDeadline,
        limits: &ClientLimits,
        cx: &mut Context<'_>,
    ) -> Poll<AbortReason> {
        if let Poll::Ready(fault) = self.poll(request, limits, cx) {
            return Poll::Ready(fault);
        }
        let bytes = self.bytes_received + self.bytes_sent;
        let tunnel_idle = match self.tunnel_idle {
            Some(tunnel_idle) if tunnel_idle.bytes == bytes => tunnel_idle,
            Some(_) | None => StallWindow {
                since: Instant::now(),
                bytes,
            },
        };
        self.tunnel_idle = Some(tunnel_idle);
        self.timer
            .poll(tunnel_idle.since + limits.tunnel_timeout, cx)
            .map(|()| AbortReason::ClientStalled)
    }

    /// While the upstream is waited for: whether it, or the request as a whole, has taken too long.
    pub(crate) fn poll_upstream(
        &mut self,
        request: &RequestDeadline,
        limits: &ClientLimits,
        cx: &mut Context<'_>,
    ) -> Poll<AbortReason> {
        loop {
            let within = request.upstream_timeout_ms.load(Ordering::Relaxed);
            if within == 0 {
                return self.poll(request, limits, cx);
            }
            let due = request
                .waiting_since_ms
                .load(Ordering::Relaxed)
                .saturating_add(within);
            if request.deadline_ms.load(Ordering::Relaxed) <= due {
                return self.poll(request, limits, cx);
            }
            ready!(
                self.timer
                    .poll(request.created_at + Duration::from_millis(due), cx)
            );
            if request.age_ms(Instant::now()) >= due {
                return Poll::Ready(AbortReason::UpstreamTimeout);
            }
        }
    }
}
