//! How an HTTP/2 connection stands: what its client has done to it, and whether it has been told to
//! go.

use std::time::{Duration, Instant};

use crate::config::ClientLimits;

/// How many more streams than it let come to an end a client may give up. Above it, it only makes
/// work (the rapid reset of CVE-2023-44487).
const MAX_EXCESS_RESETS: usize = 100;

/// How many more malformed requests than others a client may send.
const MAX_EXCESS_MALFORMED: usize = 32;

/// How long a client may take to close a connection that is over.
const CLOSE_AFTER_GOAWAY: Duration = Duration::from_secs(1);

/// How a stream ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamEnd {
    /// With its answer, or for a reason of ours.
    Completed,
    /// The client gave it up.
    Reset,
    /// It was no request.
    Malformed,
}

/// Why a client is sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// It gives up what it has begun.
    RapidReset,
    /// What it sends is malformed.
    MalformedRequests,
    /// It goes on although it was told to go.
    IgnoredGoaway,
}

/// How a connection stands.
#[derive(Debug)]
pub(super) struct ConnectionAbuseTracker {
    /// Requests that were malformed, less those that were not.
    malformed: usize,
    /// Streams that the client gave up, less those that it let come to an end.
    resets: usize,
    connected_at: Instant,
    /// Whether the client has begun a stream.
    has_opened_stream: bool,
    /// When the client was told to go.
    goaway_sent_at: Option<Instant>,
    /// Whether it began a stream long after that.
    ignored_goaway: bool,
    is_violation_reported: bool,
    /// How long the connection may have no stream.
    idle_timeout: Duration,
    /// When a stream ended last.
    last_stream_ended_at: Instant,
}

impl ConnectionAbuseTracker {
    pub(super) fn new(limits: &ClientLimits, now: Instant) -> Self {
        Self {
            malformed: 0,
            resets: 0,
            connected_at: now,
            has_opened_stream: false,
            goaway_sent_at: None,
            ignored_goaway: false,
            is_violation_reported: false,
            idle_timeout: limits.head_timeout,
            last_stream_ended_at: now,
        }
    }

    /// When the client connected.
    pub(super) fn connected_at(&self) -> Instant {
        self.connected_at
    }

    /// Whether it has begun a stream since.
    pub(super) fn has_opened_stream(&self) -> bool {
        self.has_opened_stream
    }

    /// How long the connection may have no stream from now on.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Whether the client has been told to go.
    pub(super) fn is_goaway_sent(&self) -> bool {
        self.goaway_sent_at.is_some()
    }

    /// The client is told to go.
    pub(super) fn note_goaway(&mut self, now: Instant) {
        self.goaway_sent_at.get_or_insert(now);
        self.idle_timeout = CLOSE_AFTER_GOAWAY;
    }

    /// A stream begins. One that crossed the GOAWAY on its way is served, as RFC 9113 section 6.8
    /// has it; a client that opens others never acknowledges it, and would have the connection for
    /// good.
    pub(super) fn note_stream_opened(&mut self, limits: &ClientLimits, now: Instant) {
        self.has_opened_stream = true;
        match self.goaway_sent_at {
            None => self.idle_timeout = limits.idle_timeout,
            Some(sent_at) => {
                self.ignored_goaway |= now.duration_since(sent_at) > limits.head_timeout
            }
        }
    }

    /// A stream has ended.
    pub(super) fn note_stream_ended(&mut self, end: StreamEnd, now: Instant) {
        self.last_stream_ended_at = now;
        match end {
            StreamEnd::Reset => self.resets += 1,
            StreamEnd::Malformed => self.malformed += 1,
            StreamEnd::Completed => {
                self.resets = self.resets.saturating_sub(1);
                self.malformed = self.malformed.saturating_sub(1);
            }
        }
    }

    /// Why the client is sent away now, if it is; told once. `open` are the streams that are still
    /// being served: one that was given up makes place for the next one at once, and may be served
    /// for a while yet.
    pub(super) fn violation(&mut self, limits: &ClientLimits, open: usize) -> Option<Violation> {
        let max_open = usize::try_from(limits.streams)
            .unwrap_or(usize::MAX)
            .saturating_add(MAX_EXCESS_RESETS);
        let violation = if self.resets > MAX_EXCESS_RESETS || open > max_open {
            Violation::RapidReset
        } else if self.malformed > MAX_EXCESS_MALFORMED {
            Violation::MalformedRequests
        } else if self.ignored_goaway {
            Violation::IgnoredGoaway
        } else {
            return None;
        };
        (!std::mem::replace(&mut self.is_violation_reported, true)).then_some(violation)
    }

    /// Whether nothing is waited for any more, on a connection that is over and has no stream:
    /// neither bytes of the last answers, which the client may take as slowly as any others, but
    /// not for longer than a request may last.
    pub(super) fn is_done(&self, limits: &ClientLimits, has_backlog: bool, now: Instant) -> bool {
        self.is_goaway_sent()
            && (!has_backlog || now.duration_since(self.last_stream_ended_at) > limits.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker() -> (ConnectionAbuseTracker, ClientLimits, Instant) {
        let (limits, now) = (ClientLimits::default(), Instant::now());
        (ConnectionAbuseTracker::new(&limits, now), limits, now)
    }

    #[test]
    fn who_gives_up_more_than_it_waits_for_is_is_violation_reported_once_told_to_go_or_not() {
        for told in [false, true] {
            let (mut tracker, limits, now) = tracker();
            if told {
                tracker.note_goaway(now);
            }
            for _ in 0..MAX_EXCESS_RESETS {
                tracker.note_stream_ended(StreamEnd::Reset, now);
                tracker.note_stream_ended(StreamEnd::Reset, now);
                tracker.note_stream_ended(StreamEnd::Completed, now);
            }
            assert_eq!(tracker.violation(&limits, 0), None);
            tracker.note_stream_ended(StreamEnd::Reset, now);
            assert_eq!(tracker.violation(&limits, 0), Some(Violation::RapidReset));
            assert_eq!(tracker.violation(&limits, 0), None, "once");
        }
    }

    #[test]
    fn so_is_who_has_more_streams_served_than_it_may_have_open() {
        let (mut tracker, limits, _) = tracker();
        assert_eq!(tracker.violation(&limits, 200), None);
        assert_eq!(tracker.violation(&limits, 201), Some(Violation::RapidReset));
    }

    #[test]
    fn a_malformed_request_is_made_up_for_by_one_that_is_not() {
        let (mut tracker, limits, now) = tracker();
        for _ in 0..10 * MAX_EXCESS_MALFORMED {
            tracker.note_stream_ended(StreamEnd::Malformed, now);
            tracker.note_stream_ended(StreamEnd::Completed, now);
        }
        for _ in 0..MAX_EXCESS_MALFORMED {
            tracker.note_stream_ended(StreamEnd::Malformed, now);
            assert_eq!(tracker.violation(&limits, 0), None);
        }
        tracker.note_stream_ended(StreamEnd::Malformed, now);
        assert_eq!(
            tracker.violation(&limits, 0),
            Some(Violation::MalformedRequests)
        );
    }

    #[test]
    fn streams_may_cross_a_goaway_but_not_ignore_it() {
        let (mut tracker, limits, now) = tracker();
        tracker.note_goaway(now);
        tracker.note_stream_opened(&limits, now + limits.head_timeout);
        assert_eq!(tracker.violation(&limits, 1), None);
        tracker.note_stream_opened(&limits, now + 2 * limits.head_timeout);
        assert_eq!(
            tracker.violation(&limits, 1),
            Some(Violation::IgnoredGoaway)
        );
    }

    #[test]
    fn the_last_bytes_are_waited_for_but_not_for_ever() {
        let (mut tracker, limits, now) = tracker();
        assert!(!tracker.is_done(&limits, false, now), "not told yet");
        tracker.note_goaway(now);
        let late = now + 2 * limits.deadline;
        tracker.note_stream_ended(StreamEnd::Completed, late);
        assert!(tracker.is_done(&limits, false, late));
        assert!(!tracker.is_done(&limits, true, late + limits.deadline));
        assert!(tracker.is_done(&limits, true, late + 2 * limits.deadline));
    }
}
