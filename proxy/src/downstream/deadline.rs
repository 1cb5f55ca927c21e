//! How long one request may keep the gateway waiting, whichever protocol it came by.
//!
//! Pingora has no hook for this: while it waits for an upstream it keeps asking the client's side
//! whether the client is still there, and that question is answered with an error when the time is
//! over.

mod timer;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::config::Limits;
pub(crate) use timer::{Alarm, Stall};

/// What the gateway's hooks say about the time of one request, and ask.
#[derive(Debug)]
pub(crate) struct Watch {
    born: Instant,
    /// Milliseconds after `born` at which the request must be over; the gateway sets it by route.
    deadline_ms: AtomicU64,
    /// How long the upstream may keep this side waiting, in milliseconds; 0 for no limit.
    upstream_ms: AtomicU64,
    /// Milliseconds after `born` since when it does: the choice of its address, the end of the
    /// request, or what it sent last.
    waiting_ms: AtomicU64,
    /// Whether that was a moment ago, so that the clock need not be read again.
    fresh: AtomicBool,
    /// Whether the whole request has arrived.
    complete: AtomicBool,
    /// Whether the client gave the request up.
    gone: AtomicBool,
    /// Whether it is a gRPC call.
    call: AtomicBool,
    /// Whether the whole response has been written.
    answered: AtomicBool,
    /// What the response may hold while its reader is waited for.
    buffer_units: AtomicUsize,
    fault: AtomicU8,
}

/// Why reading or writing was ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The body is not framed as it should be.
    Framing = 1,
    /// The client sends or reads too slowly.
    Stalled = 2,
    /// The request took too long, and the client is being waited for.
    Deadline = 3,
    /// The upstream sent nothing for too long.
    Upstream = 4,
    /// The request took too long, and the client is not what it waits for.
    Overdue = 5,
    /// The token of a tunnel expired.
    Expired = 6,
    /// There is no room for what a slow reader has not taken.
    NoBuffer = 7,
}

/// The directions in which nothing moves just now, and one timer for all of it.
#[derive(Default)]
pub(crate) struct Patience {
    pub(crate) alarm: Alarm,
    pub(crate) reading: Option<Stall>,
    writing: Option<Stall>,
    /// Since when the reader has not been waited for: it had taken all there was.
    resting: Option<Instant>,
    /// Of a tunnel: both directions together.
    silence: Option<Stall>,
    /// Bytes that came from the client and went to it.
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            deadline_ms: AtomicU64::new(u64::MAX),
            upstream_ms: AtomicU64::new(0),
            waiting_ms: AtomicU64::new(0),
            fresh: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            call: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            buffer_units: AtomicUsize::new(1),
            fault: AtomicU8::new(0),
        }
    }

    /// When the connection, or the stream, began.
    pub(crate) fn born(&self) -> Instant {
        self.born
    }

    /// The next request of a connection: it must be over `after` from now on.
    pub(crate) fn begin(&self, after: Duration, complete: bool) {
        self.set_deadline(after, Instant::now());
        self.upstream_ms.store(0, Ordering::Relaxed);
        self.fresh.store(false, Ordering::Relaxed);
        self.complete.store(complete, Ordering::Relaxed);
        self.fault.store(0, Ordering::Relaxed);
        self.set_buffer_units(1);
    }

    /// The request must be over `after` from `now` on.
    pub(crate) fn set_deadline(&self, after: Duration, now: Instant) {
        self.deadline_ms.store(
            self.age_ms(now).saturating_add(millis(after)),
            Ordering::Relaxed,
        );
    }

    /// The upstream must send something at least every `within`, from `now` or from the end of the
    /// request on.
    pub(crate) fn expect_upstream(&self, within: Duration, now: Instant) {
        self.upstream_ms
            .store(millis(within).max(1), Ordering::Relaxed);
        self.waiting_ms.store(self.age_ms(now), Ordering::Relaxed);
    }

    /// The head of the answer came at `now`, and is about to be written: that is no progress of its
    /// own.
    pub(crate) fn note_answer(&self, within: Duration, now: Instant) {
        self.expect_upstream(within, now);
        self.fresh.store(true, Ordering::Relaxed);
    }

    /// Something came from the upstream, or the last of the request went to it.
    pub(crate) fn note_progress(&self) {
        if self.upstream_ms.load(Ordering::Relaxed) != 0
            && !self.fresh.swap(false, Ordering::Relaxed)
        {
            self.waiting_ms
                .store(self.age_ms(Instant::now()), Ordering::Relaxed);
        }
    }

    /// The whole request has arrived: from now on the upstream is waited for.
    pub(crate) fn note_complete(&self) {
        self.complete.store(true, Ordering::Relaxed);
        self.note_progress();
    }

    /// Nothing ends the request any more: it has become a tunnel.
    pub(crate) fn lift(&self) {
        self.deadline_ms.store(u64::MAX, Ordering::Relaxed);
        self.upstream_ms.store(0, Ordering::Relaxed);
    }

    /// Whether the whole request has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
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
    pub(crate) fn mark_call(&self) {
        self.call.store(true, Ordering::Relaxed);
    }

    /// Whether it is a gRPC call.
    pub(crate) fn is_call(&self) -> bool {
        self.call.load(Ordering::Relaxed)
    }

    /// The whole response of a stream has been written, if it has.
    pub(crate) fn note_answered(&self, answered: bool) {
        if answered {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the whole response of a stream has been written: a client that resets it then gives
    /// nothing up.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// The client has given the request up, if it has.
    pub(crate) fn note_gone(&self, gone: bool) {
        if gone && !self.is_answered() {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the client gave the request up.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Remembers why this side ends the request.
    pub(crate) fn fail(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::Relaxed);
    }

    /// Why this side ended the request, if it did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self.fault.load(Ordering::Relaxed) {
            1 => Some(Fault::Framing),
            2 => Some(Fault::Stalled),
            3 => Some(Fault::Deadline),
            4 => Some(Fault::Upstream),
            5 => Some(Fault::Overdue),
            6 => Some(Fault::Expired),
            7 => Some(Fault::NoBuffer),
            _ => None,
        }
    }

    fn age_ms(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.born))
    }

    fn deadline(&self) -> Option<Instant> {
        match self.deadline_ms.load(Ordering::Relaxed) {
            u64::MAX => None,
            millis => self.born.checked_add(Duration::from_millis(millis)),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl Patience ===

impl Patience {
    /// The client is waited for: it has sent nothing that is not read yet.
    pub(crate) fn wait_for_body(&mut self) {
        let moved = self.received;
        self.reading.get_or_insert_with(|| Stall {
            since: Instant::now(),
            moved,
        });
    }

    /// The client is waited for: it takes nothing just now.
    pub(crate) fn wait_for_reader(&mut self) {
        let moved = self.sent;
        let stall = self.writing.get_or_insert_with(|| Stall {
            since: Instant::now(),
            moved,
        });
        if let Some(resting) = self.resting.take() {
            stall.since += resting.elapsed();
        }
    }

    /// The client has taken all there was. Whether it had been waited for: that time counts on when
    /// it is again, or who takes a little now and then would be slower than the least rate for
    /// ever.
    pub(crate) fn rest_from_reader(&mut self) -> bool {
        let waited = self.writing.is_some() && self.resting.is_none();
        if waited {
            self.resting = Some(Instant::now());
        }
        waited
    }

    /// Whether the client is waited for to take what was written.
    pub(crate) fn waits_for_reader(&self) -> bool {
        self.writing.is_some() && self.resting.is_none()
    }

    /// The next request owes nothing for the one before.
    pub(crate) fn begin(&mut self) {
        (self.reading, self.writing, self.resting) = (None, None, None);
    }

    /// Whether the client has kept us waiting for too long.
    pub(crate) fn poll(
        &mut self,
        watch: &Watch,
        limits: &Limits,
        cx: &mut Context<'_>,
    ) -> Poll<Fault> {
        let deadline = watch.deadline();
        let window = limits.stall_timeout;
        let least = limits.least_bytes();
        loop {
            let writing = self.writing.filter(|_| self.resting.is_none());
            let stalls = [self.reading, writing]
                .into_iter()
                .flatten()
                .map(|stall| stall.since + window);
            let Some(due) = stalls.chain(deadline).min() else {
                return Poll::Pending;
            };
            ready!(self.alarm.poll(due, cx));
            if deadline.is_some_and(|deadline| deadline <= due) {
                let waits_for_client = self.reading.or(writing).is_some();
                return Poll::Ready(if waits_for_client {
                    Fault::Deadline
                } else {
                    Fault::Overdue
                });
            }
            let now = Instant::now();
            let writing = self.writing.as_mut().filter(|_| self.resting.is_none());
            for (stall, moved) in [(self.reading.as_mut(), self.received), (writing, self.sent)] {
                match stall {
                    Some(stall) if stall.since + window <= now => {
                        if moved - stall.moved < least {
                            return Poll::Ready(Fault::Stalled);
                        }
                        *stall = Stall { since: now, moved };
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
        watch: &Watch,
        limits: &Limits,
        cx: &mut Context<'_>,
    ) -> Poll<Fault> {
        if let Poll::Ready(fault) = self.poll(watch, limits, cx) {
            return Poll::Ready(fault);
        }
        let moved = self.received + self.sent;
        let silence = match self.silence {
            Some(silence) if silence.moved == moved => silence,
            Some(_) | None => Stall {
                since: Instant::now(),
                moved,
            },
        };
        self.silence = Some(silence);
        self.alarm
            .poll(silence.since + limits.tunnel_timeout, cx)
            .map(|()| Fault::Stalled)
    }

    /// While the upstream is waited for: whether it, or the request as a whole, has taken too long.
    pub(crate) fn poll_upstream(
        &mut self,
        watch: &Watch,
        limits: &Limits,
        cx: &mut Context<'_>,
    ) -> Poll<Fault> {
        loop {
            let within = watch.upstream_ms.load(Ordering::Relaxed);
            if within == 0 {
                return self.poll(watch, limits, cx);
            }
            let due = watch
                .waiting_ms
                .load(Ordering::Relaxed)
                .saturating_add(within);
            if watch.deadline_ms.load(Ordering::Relaxed) <= due {
                return self.poll(watch, limits, cx);
            }
            ready!(self.alarm.poll(watch.born + Duration::from_millis(due), cx));
            if watch.age_ms(Instant::now()) >= due {
                return Poll::Ready(Fault::Upstream);
            }
        }
    }
}
