//! HTTP/2 abuse limits of one connection.

use std::time::{Duration, Instant};

use crate::config::ClientLimits;

/// Maximum streams that a client may reset in excess of those that it lets complete. Above it, the
/// client is treated as an attacker (rapid reset, CVE-2023-44487).
const MAX_EXCESS_RESETS: usize = 100;

/// Maximum malformed requests in excess of well-formed ones.
const MAX_EXCESS_MALFORMED: usize = 32;

/// Time for a client to close an idle connection after GOAWAY.
const CLOSE_AFTER_GOAWAY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) enum StreamEnd {
    /// The response is complete, or the gateway ended the stream.
    Completed,
    Reset,
    Malformed,
}

/// The reason for closing a connection as abusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// Too many streams were reset.
    RapidReset,
    /// Too many requests were malformed.
    MalformedRequests,
    /// Streams were opened long after GOAWAY.
    IgnoredGoaway,
}

/// The abuse counters and the shutdown state of a connection.
#[derive(Debug)]
pub(super) struct ConnectionAbuseTracker {
    /// Malformed requests in excess of well-formed ones.
    malformed: usize,
    /// Reset streams in excess of completed ones.
    resets: usize,
    pub(super) has_opened_stream: bool,
    goaway_sent_at: Option<Instant>,
    /// Whether the client opened a stream long after GOAWAY.
    ignored_goaway: bool,
    is_violation_reported: bool,
    /// Time for which the connection may have no open stream from now on.
    pub(super) idle_timeout: Duration,
    /// Whether the peer is a trusted proxy, so that closing would end requests of other clients.
    is_shared: bool,
    last_stream_ended_at: Instant,
}

impl ConnectionAbuseTracker {
    pub(super) fn new(limits: &ClientLimits, is_shared: bool, now: Instant) -> Self {
        Self {
            malformed: 0,
            resets: 0,
            has_opened_stream: false,
            goaway_sent_at: None,
            ignored_goaway: false,
            is_violation_reported: false,
            idle_timeout: limits.http.head_timeout,
            is_shared,
            last_stream_ended_at: now,
        }
    }

    pub(super) fn is_goaway_sent(&self) -> bool {
        self.goaway_sent_at.is_some()
    }

    pub(super) fn note_goaway(&mut self, now: Instant) {
        self.goaway_sent_at.get_or_insert(now);
        self.idle_timeout = CLOSE_AFTER_GOAWAY;
    }

    /// Records a new stream. A stream that the client opened before it received GOAWAY is served
    /// (RFC 9113 section 6.8). A client that keeps opening streams for longer than the head timeout
    /// ignores GOAWAY and would keep the connection open indefinitely.
    pub(super) fn note_stream_opened(&mut self, limits: &ClientLimits, now: Instant) {
        self.has_opened_stream = true;
        match self.goaway_sent_at {
            None => self.idle_timeout = limits.http.idle_timeout,
            Some(sent_at) => {
                self.ignored_goaway |= now.duration_since(sent_at) > limits.http.head_timeout;
            }
        }
    }

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

    /// Returns the violation for which the connection must be closed, once. `open` is the number of
    /// streams that are being served: a reset stream frees its slot for the client at once, but may
    /// still be served for some time. A connection with streams of many clients is not closed for
    /// them: [`crate::admission::early_ends`] counts by client.
    pub(super) fn violation(&mut self, limits: &ClientLimits, open: usize) -> Option<Violation> {
        let max_open = usize::try_from(limits.streams)
            .unwrap_or(usize::MAX)
            .saturating_add(MAX_EXCESS_RESETS);
        let is_reset = self.resets > MAX_EXCESS_RESETS || open > max_open;
        let violation = if is_reset && !self.is_shared {
            Violation::RapidReset
        } else if self.malformed > MAX_EXCESS_MALFORMED && !self.is_shared {
            Violation::MalformedRequests
        } else if self.ignored_goaway {
            Violation::IgnoredGoaway
        } else {
            return None;
        };
        (!std::mem::replace(&mut self.is_violation_reported, true)).then_some(violation)
    }

    /// Returns whether a connection without streams can be closed: GOAWAY was sent, and no data of
    /// the last responses is pending. A client may read that data as slowly as any other, but for
    /// no longer than the request deadline.
    pub(super) fn is_done(&self, limits: &ClientLimits, has_backlog: bool, now: Instant) -> bool {
        self.is_goaway_sent()
            && (!has_backlog
                || now.duration_since(self.last_stream_ended_at) > limits.http.deadline)
    }
}

#[cfg(test)]
mod tests {
    use postern_core::decode::defaults;

    use super::*;

    fn tracker() -> (ConnectionAbuseTracker, ClientLimits, Instant) {
        let (limits, now) = (defaults(ClientLimits::read), Instant::now());
        let tracker = ConnectionAbuseTracker::new(&limits, false, now);
        (tracker, limits, now)
    }

    #[test]
    fn completed_request_offsets_a_malformed_one() {
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
        let actual = tracker.violation(&limits, 0);
        assert_eq!(actual, Some(Violation::MalformedRequests));
    }

    #[test]
    fn stream_may_cross_goaway_but_not_ignore_it() {
        let (mut tracker, limits, now) = tracker();
        tracker.note_goaway(now);
        tracker.note_stream_opened(&limits, now + limits.http.head_timeout);
        assert_eq!(tracker.violation(&limits, 1), None);
        tracker.note_stream_opened(&limits, now + 2 * limits.http.head_timeout);
        let actual = tracker.violation(&limits, 1);
        assert_eq!(actual, Some(Violation::IgnoredGoaway));
    }

    #[test]
    fn pending_data_delays_close_until_the_deadline() {
        let (mut tracker, limits, now) = tracker();
        assert!(!tracker.is_done(&limits, false, now), "GOAWAY not sent yet");
        tracker.note_goaway(now);
        let late = now + 2 * limits.http.deadline;
        tracker.note_stream_ended(StreamEnd::Completed, late);
        assert!(tracker.is_done(&limits, false, late));
        assert!(!tracker.is_done(&limits, true, late + limits.http.deadline));
        assert!(tracker.is_done(&limits, true, late + 2 * limits.http.deadline));
    }
}
