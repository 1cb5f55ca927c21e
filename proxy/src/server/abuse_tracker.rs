//! How an HTTP/2 connection stands: what its client has done to it, and whether it has been told to
//! go.

use std::time::{Duration, Instant};

use crate::config::Limits;

/// How many more streams than it let come to an end a client may give up. Above it, it only makes
/// work (the rapid reset of CVE-2023-44487).
const MOST_ABANDONED: usize = 100;

/// How many more malformed requests than others a client may send.
const MOST_MALFORMED: usize = 32;

/// How long a client may take to close a connection that is over.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a stream ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// With its answer, or for a reason of ours.
    Over,
    /// The client gave it up.
    Abandoned,
    /// It was no request.
    Malformed,
}

/// Why a client is sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offence {
    /// It gives up what it has begun.
    Abandons,
    /// What it sends is malformed.
    Malforms,
    /// It goes on although it was told to go.
    Stays,
}

/// How a connection stands.
#[derive(Debug)]
pub(super) struct Standing {
    /// Requests that were malformed, less those that were not.
    malformed: usize,
    /// Streams that the client gave up, less those that it let come to an end.
    abandoned: usize,
    born: Instant,
    /// Whether the client has begun a stream.
    has_begun: bool,
    /// When the client was told to go.
    told: Option<Instant>,
    /// Whether it began a stream long after that.
    stays: bool,
    sent_away: bool,
    /// How long the connection may have no stream.
    patience: Duration,
    /// When a stream ended last.
    ended: Instant,
}

impl Standing {
    pub(super) fn new(limits: &Limits, now: Instant) -> Self {
        Self {
            malformed: 0,
            abandoned: 0,
            born: now,
            has_begun: false,
            told: None,
            stays: false,
            sent_away: false,
            patience: limits.head_timeout,
            ended: now,
        }
    }

    /// When the client connected.
    pub(super) fn born(&self) -> Instant {
        self.born
    }

    /// Whether it has begun a stream since.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// How long the connection may have no stream from now on.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether the client has been told to go.
    pub(super) fn is_over(&self) -> bool {
        self.told.is_some()
    }

    /// The client is told to go.
    pub(super) fn end(&mut self, now: Instant) {
        self.told.get_or_insert(now);
        self.patience = GOODBYE;
    }

    /// A stream begins. One that crossed the GOAWAY on its way is served, as RFC 9113 section 6.8
    /// has it; a client that opens others never acknowledges it, and would have the connection for
    /// good.
    pub(super) fn begin(&mut self, limits: &Limits, now: Instant) {
        self.has_begun = true;
        match self.told {
            None => self.patience = limits.idle_timeout,
            Some(told) => self.stays |= now.duration_since(told) > limits.head_timeout,
        }
    }

    /// A stream has ended.
    pub(super) fn note(&mut self, end: End, now: Instant) {
        self.ended = now;
        match end {
            End::Abandoned => self.abandoned += 1,
            End::Malformed => self.malformed += 1,
            End::Over => {
                self.abandoned = self.abandoned.saturating_sub(1);
                self.malformed = self.malformed.saturating_sub(1);
            }
        }
    }

    /// Why the client is sent away now, if it is; told once. `open` are the streams that are still
    /// being served: one that was given up makes place for the next one at once, and may be served
    /// for a while yet.
    pub(super) fn offence(&mut self, limits: &Limits, open: usize) -> Option<Offence> {
        let most_open = usize::try_from(limits.streams)
            .unwrap_or(usize::MAX)
            .saturating_add(MOST_ABANDONED);
        let offence = if self.abandoned > MOST_ABANDONED || open > most_open {
            Offence::Abandons
        } else if self.malformed > MOST_MALFORMED {
            Offence::Malforms
        } else if self.stays {
            Offence::Stays
        } else {
            return None;
        };
        (!std::mem::replace(&mut self.sent_away, true)).then_some(offence)
    }

    /// Whether nothing is waited for any more, on a connection that is over and has no stream:
    /// neither bytes of the last answers, which the client may take as slowly as any others, but
    /// not for longer than a request may last.
    pub(super) fn is_done(&self, limits: &Limits, has_backlog: bool, now: Instant) -> bool {
        self.is_over() && (!has_backlog || now.duration_since(self.ended) > limits.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> (Standing, Limits, Instant) {
        let (limits, now) = (Limits::default(), Instant::now());
        (Standing::new(&limits, now), limits, now)
    }

    #[test]
    fn who_gives_up_more_than_it_waits_for_is_sent_away_once_told_to_go_or_not() {
        for told in [false, true] {
            let (mut standing, limits, now) = standing();
            if told {
                standing.end(now);
            }
            for _ in 0..MOST_ABANDONED {
                standing.note(End::Abandoned, now);
                standing.note(End::Abandoned, now);
                standing.note(End::Over, now);
            }
            assert_eq!(standing.offence(&limits, 0), None);
            standing.note(End::Abandoned, now);
            assert_eq!(standing.offence(&limits, 0), Some(Offence::Abandons));
            assert_eq!(standing.offence(&limits, 0), None, "once");
        }
    }

    #[test]
    fn so_is_who_has_more_streams_served_than_it_may_have_open() {
        let (mut standing, limits, _) = standing();
        assert_eq!(standing.offence(&limits, 200), None);
        assert_eq!(standing.offence(&limits, 201), Some(Offence::Abandons));
    }

    #[test]
    fn a_malformed_request_is_made_up_for_by_one_that_is_not() {
        let (mut standing, limits, now) = standing();
        for _ in 0..10 * MOST_MALFORMED {
            standing.note(End::Malformed, now);
            standing.note(End::Over, now);
        }
        for _ in 0..MOST_MALFORMED {
            standing.note(End::Malformed, now);
            assert_eq!(standing.offence(&limits, 0), None);
        }
        standing.note(End::Malformed, now);
        assert_eq!(standing.offence(&limits, 0), Some(Offence::Malforms));
    }

    #[test]
    fn streams_may_cross_a_goaway_but_not_ignore_it() {
        let (mut standing, limits, now) = standing();
        standing.end(now);
        standing.begin(&limits, now + limits.head_timeout);
        assert_eq!(standing.offence(&limits, 1), None);
        standing.begin(&limits, now + 2 * limits.head_timeout);
        assert_eq!(standing.offence(&limits, 1), Some(Offence::Stays));
    }

    #[test]
    fn the_last_bytes_are_waited_for_but_not_for_ever() {
        let (mut standing, limits, now) = standing();
        assert!(!standing.is_done(&limits, false, now), "not told yet");
        standing.end(now);
        let late = now + 2 * limits.deadline;
        standing.note(End::Over, late);
        assert!(standing.is_done(&limits, false, late));
        assert!(!standing.is_done(&limits, true, late + limits.deadline));
        assert!(standing.is_done(&limits, true, late + 2 * limits.deadline));
    }
}
