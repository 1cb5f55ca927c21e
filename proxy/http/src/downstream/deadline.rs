//! Deadlines and minimum transfer rates of requests, for HTTP/1 and HTTP/2.
//!
//! While an exchange waits for an upstream, it polls the client side for a disconnect, and that poll
//! returns an error when a deadline has passed.

mod timer;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::downstream::limits::HttpLimits;
pub use timer::DeadlineTimer;
pub(crate) use timer::StallWindow;

/// The deadline and state of a request, shared by the forwarding hooks and the client connection.
/// Times are milliseconds since `created_at`.
#[derive(Debug)]
pub struct RequestDeadline {
    created_at: Instant,
    /// Time by which the request must be complete, set by route; `u64::MAX` for none.
    deadline_ms: AtomicU64,
    /// Maximum time without progress of the upstream; 0 for none.
    upstream_timeout_ms: AtomicU64,
    /// Time of the upstream's last progress: the choice of its address, the end of the request, or
    /// its last data.
    waiting_since_ms: AtomicU64,
    /// Whether the progress was just recorded, so that the clock need not be read again.
    skip_next_progress: AtomicBool,
    /// Whether the whole request has been received.
    request_complete: AtomicBool,
    /// Whether the client aborted the request.
    client_aborted: AtomicBool,
    /// Whether the whole response has been written.
    response_complete: AtomicBool,
    /// Whether the reader of the response was waited for, for longer than [`SLOW_READER_WAIT`].
    reader_was_slow: AtomicBool,
    /// HTTP/1 only: whether the connection closes after the response.
    closes_after_response: AtomicBool,
    /// Whether the deadline is the expiry of the token.
    ends_at_expiry: AtomicBool,
    abort_reason: AtomicU8,
    /// The key of the client in shares of common resources; 0 if it is not known.
    client_share: AtomicU64,
}

/// Time for which a reader is waited for, after which an upstream may give up sending.
const SLOW_READER_WAIT: Duration = Duration::from_secs(1);

/// The reason for which the gateway aborted reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// The body framing is malformed.
    InvalidFraming = 1,
    /// The client sends or reads below the minimum rate.
    ClientStalled = 2,
    /// The request deadline passed while the gateway was waiting for the client.
    ClientDeadline = 3,
    /// The upstream made no progress for its read timeout.
    UpstreamTimeout = 4,
    /// The request deadline passed while the gateway was waiting for the upstream.
    UpstreamDeadline = 5,
    /// The token of a tunnel or event stream expired.
    TokenExpired = 6,
    /// The buffer budget for slow readers is exhausted.
    BufferExhausted = 7,
}

/// Enforces deadlines and minimum rates of a client, with a single timer.
pub(crate) struct SlowClientGuard {
    pub(crate) timer: DeadlineTimer,
    pub(crate) reading: Option<StallWindow>,
    writing: Option<StallWindow>,
    /// Windows within which the client must accept what is being written.
    pub(crate) write_windows: u32,
    /// Time since which the reader is not waited for, because it had taken all data.
    paused_since: Option<Instant>,
    /// Tunnels only: the time without transfer in both directions.
    tunnel_idle: Option<StallWindow>,
    /// Bytes received from and sent to the client.
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}

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
            response_complete: AtomicBool::new(false),
            reader_was_slow: AtomicBool::new(false),
            closes_after_response: AtomicBool::new(false),
            ends_at_expiry: AtomicBool::new(false),
            abort_reason: AtomicU8::new(0),
            client_share: AtomicU64::new(0),
        }
    }

    /// Returns the time at which the connection or stream was opened.
    pub fn created_at(&self) -> Instant {
        self.created_at
    }

    /// Starts the next request of the connection, which must be complete `after` from now.
    pub(crate) fn start_request(&self, after: Duration, request_complete: bool) {
        self.set_timeout(after, Instant::now());
        self.upstream_timeout_ms.store(0, Ordering::Relaxed);
        self.skip_next_progress.store(false, Ordering::Relaxed);
        self.request_complete
            .store(request_complete, Ordering::Relaxed);
        self.reader_was_slow.store(false, Ordering::Relaxed);
        self.closes_after_response.store(false, Ordering::Relaxed);
        self.ends_at_expiry.store(false, Ordering::Relaxed);
        self.abort_reason.store(0, Ordering::Relaxed);
    }

    /// Sets the deadline to `after` from `now`.
    pub fn set_timeout(&self, after: Duration, now: Instant) {
        self.deadline_ms.store(
            self.age_ms(now).saturating_add(millis(after)),
            Ordering::Relaxed,
        );
    }

    /// Requires progress of the upstream at least every `within`, from `now` or from the end of the
    /// request.
    pub fn expect_upstream(&self, within: Duration, now: Instant) {
        self.upstream_timeout_ms
            .store(millis(within).max(1), Ordering::Relaxed);
        self.waiting_since_ms
            .store(self.age_ms(now), Ordering::Relaxed);
    }

    /// Records the response head, received at `now`. Writing it does not count as further progress.
    pub fn note_response_head(&self, within: Duration, now: Instant) {
        self.expect_upstream(within, now);
        self.skip_next_progress.store(true, Ordering::Relaxed);
    }

    /// Records that data came from the upstream, or that the end of the request was sent to it.
    pub(crate) fn note_progress(&self) {
        if self.upstream_timeout_ms.load(Ordering::Relaxed) != 0
            && !self.skip_next_progress.swap(false, Ordering::Relaxed)
        {
            self.waiting_since_ms
                .store(self.age_ms(Instant::now()), Ordering::Relaxed);
        }
    }

    /// Records that the whole request was received. From now on the upstream must make progress.
    pub(crate) fn note_request_complete(&self) {
        self.request_complete.store(true, Ordering::Relaxed);
        self.note_progress();
    }

    /// Makes the request end at this time, at which its token expires, if not before.
    pub fn end_at_expiry(&self, at: Instant) {
        let at = self.age_ms(at);
        if at < self.deadline_ms.fetch_min(at, Ordering::Relaxed) {
            self.ends_at_expiry.store(true, Ordering::Relaxed);
        }
    }

    /// Removes all deadlines, for a tunnel.
    pub(crate) fn clear(&self) {
        self.deadline_ms.store(u64::MAX, Ordering::Relaxed);
        self.upstream_timeout_ms.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_request_complete(&self) -> bool {
        self.request_complete.load(Ordering::Relaxed)
    }

    /// Returns whether the client may be the reason for which the upstream has ended the request: it
    /// has not sent all of it, or has read the response slowly.
    pub fn awaits_client(&self) -> bool {
        !self.is_request_complete() || self.reader_was_slow.load(Ordering::Relaxed)
    }

    /// Sets the key of the client in shares of common resources.
    pub fn set_client_share(&self, client: Option<u64>) {
        self.client_share
            .store(client.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the key of the client in shares of common resources.
    pub(crate) fn client_share(&self) -> Option<u64> {
        Some(self.client_share.load(Ordering::Relaxed)).filter(|client| *client != 0)
    }

    /// Records that the whole response of a stream has been written, if `is_complete`.
    pub fn note_response_complete(&self, is_complete: bool) {
        if is_complete {
            self.response_complete.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the whole response of a stream has been written. A reset by the client after
    /// that aborts nothing.
    pub fn is_response_complete(&self) -> bool {
        self.response_complete.load(Ordering::Relaxed)
    }

    /// Makes the connection close after the response.
    pub fn close_after_response(&self) {
        self.closes_after_response.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection closes after the response.
    pub(crate) fn closes_after_response(&self) -> bool {
        self.closes_after_response.load(Ordering::Relaxed)
    }

    /// Records that the client aborted the request, if `aborted` and the response is not complete.
    pub(crate) fn note_client_aborted(&self, aborted: bool) {
        if aborted && !self.is_response_complete() {
            self.client_aborted.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the client aborted the request.
    pub fn is_client_aborted(&self) -> bool {
        self.client_aborted.load(Ordering::Relaxed)
    }

    /// Records the reason for aborting the request.
    pub fn set_abort_reason(&self, reason: AbortReason) {
        self.abort_reason.store(reason as u8, Ordering::Relaxed);
    }

    /// Returns the reason for which the gateway aborted the request, if it did.
    pub fn abort_reason(&self) -> Option<AbortReason> {
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

impl Default for SlowClientGuard {
    fn default() -> Self {
        Self {
            timer: DeadlineTimer::default(),
            reading: None,
            writing: None,
            write_windows: 1,
            paused_since: None,
            tunnel_idle: None,
            bytes_received: 0,
            bytes_sent: 0,
        }
    }
}

impl SlowClientGuard {
    /// Starts to measure the receive rate: the client is expected to send.
    pub(crate) fn wait_for_body(&mut self) {
        let bytes = self.bytes_received;
        self.reading.get_or_insert_with(|| StallWindow {
            since: Instant::now(),
            bytes,
        });
    }

    /// Starts or resumes measuring the send rate: the client is expected to read.
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

    /// Measures the send rate anew from the next wait for the reader.
    pub(crate) fn restart_reader_wait(&mut self) {
        (self.writing, self.paused_since) = (None, None);
    }

    /// Pauses measuring the send rate, because the client has taken all data. Returns whether it
    /// was measured. The elapsed time is kept and counts when the client is waited for again;
    /// otherwise a client that reads a little from time to time could stay below the minimum rate.
    pub(crate) fn pause_reader_wait(&mut self, request: &RequestDeadline) -> bool {
        let Some(stall) = self.writing.filter(|_| self.paused_since.is_none()) else {
            return false;
        };
        let now = Instant::now();
        if now.saturating_duration_since(stall.since) > SLOW_READER_WAIT {
            request.reader_was_slow.store(true, Ordering::Relaxed);
        }
        self.paused_since = Some(now);
        true
    }

    /// Returns whether the client is expected to read data that was written.
    pub(crate) fn is_waiting_for_reader(&self) -> bool {
        self.writing.is_some() && self.paused_since.is_none()
    }

    /// Resets the measurements for the next request.
    pub(crate) fn reset(&mut self) {
        (self.reading, self.writing, self.paused_since) = (None, None, None);
    }

    /// Returns the reason to abort when the client is too slow or the deadline has passed.
    pub(crate) fn poll(
        &mut self,
        request: &RequestDeadline,
        limits: &HttpLimits,
        cx: &mut Context<'_>,
    ) -> Poll<AbortReason> {
        let deadline = request.expires_at();
        let window = limits.stall_timeout;
        let write_window = window * self.write_windows;
        let least = limits.min_bytes_per_window();
        loop {
            let writing = self.writing.filter(|_| self.paused_since.is_none());
            let stalls = [(self.reading, window), (writing, write_window)]
                .into_iter()
                .filter_map(|(stall, window)| Some(stall?.since + window));
            let Some(due) = stalls.chain(deadline).min() else {
                return Poll::Pending;
            };
            ready!(self.timer.poll(due, cx));
            if deadline.is_some_and(|deadline| deadline <= due) {
                let waits_for_client = self.reading.or(writing).is_some();
                if request.ends_at_expiry.load(Ordering::Relaxed) {
                    return Poll::Ready(AbortReason::TokenExpired);
                }
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
            for (stall, window, bytes) in [
                (self.reading.as_mut(), window, self.bytes_received),
                (writing, write_window, self.bytes_sent),
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

    /// Like [`poll`](Self::poll), and limits the time for which a tunnel transfers nothing.
    pub(crate) fn poll_tunnel(
        &mut self,
        request: &RequestDeadline,
        limits: &HttpLimits,
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

    /// Like [`poll`](Self::poll), and limits the time without progress of the upstream.
    pub(crate) fn poll_upstream(
        &mut self,
        request: &RequestDeadline,
        limits: &HttpLimits,
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
