use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::delivery::pool::Standing;

/// Whether LOW flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GateState {
    /// Like any other class.
    #[default]
    Open,
    /// With a share.
    Throttled,
    /// Not at all.
    Paused,
}

/// Closes under load at once, and opens step by step only after calm: without that it would swing.
#[derive(Debug)]
pub(crate) struct Gate {
    clock: Clock,
    state: GateState,
    /// Since when the load has asked for less than the present state.
    calm_since: Option<Timestamp>,
    /// The slowest claim since the last look.
    slowest_claim: Duration,
}

/// How long the load must be lower before the gate opens by one step.
const CALM: Duration = Duration::from_secs(5);
/// Age of the oldest notification above LOW that waits: throttle, pause.
const AGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Time of a claim: throttle, pause.
const CLAIM_TIME: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

// === impl GateState ===

impl GateState {
    /// Why a LOW notification waits, in the status document.
    #[must_use]
    pub(crate) fn wait_reason(self) -> Option<&'static str> {
        match self {
            Self::Open => None,
            Self::Throttled => Some("LOW_THROTTLED"),
            Self::Paused => Some("LOW_PAUSED"),
        }
    }

    /// For the metric: 0 open, 1 throttled, 2 paused.
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Throttled => 1,
            Self::Paused => 2,
        }
    }

    /// From the metric's number.
    #[must_use]
    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Open,
            1 => Self::Throttled,
            _ => Self::Paused,
        }
    }

    const fn one_step_open(self) -> Self {
        match self {
            Self::Open | Self::Throttled => Self::Open,
            Self::Paused => Self::Throttled,
        }
    }
}

// === impl Gate ===

impl Gate {
    /// Open.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: GateState::Open,
            calm_since: None,
            slowest_claim: Duration::ZERO,
        }
    }

    /// The state since the last look.
    #[must_use]
    pub(crate) fn state(&self) -> GateState {
        self.state
    }

    /// How long a claim took.
    pub(crate) fn note_claim(&mut self, took: Duration) {
        self.slowest_claim = self.slowest_claim.max(took);
    }

    /// Looks at the load: how long the oldest above LOW has waited, and how the providers stand.
    /// While they wait for one to see whether they work again, that may be a LOW: there may be
    /// nothing else.
    pub(crate) fn look(&mut self, oldest: Duration, providers: Standing) -> GateState {
        let claim = std::mem::take(&mut self.slowest_claim);
        let wanted =
            if matches!(providers, Standing::Open(_)) || oldest > AGE.1 || claim > CLAIM_TIME.1 {
                GateState::Paused
            } else if providers == Standing::Due || oldest > AGE.0 || claim > CLAIM_TIME.0 {
                GateState::Throttled
            } else {
                GateState::Open
            };
        if wanted >= self.state {
            self.state = wanted;
            self.calm_since = None;
            return self.state;
        }
        let now = self.clock.now();
        let since = *self.calm_since.get_or_insert(now);
        if now.since(since) >= CALM {
            self.state = self.state.one_step_open();
            self.calm_since = Some(now);
        }
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_at_once_and_opens_step_by_step_after_calm() {
        let clock = Clock::manual(Timestamp(1));
        let mut gate = Gate::new(clock.clone());
        assert_eq!(
            gate.look(Duration::from_secs(2), Standing::Closed),
            GateState::Throttled
        );
        assert_eq!(
            gate.look(Duration::ZERO, Standing::Open(CALM)),
            GateState::Paused
        );
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(gate.look(Duration::ZERO, Standing::Closed));
            clock.advance(Duration::from_secs(1));
        }
        let expected = [[GateState::Paused; 5], [GateState::Throttled; 5]].concat();
        assert_eq!(seen[..10], expected[..]);
        assert_eq!(seen[10..], [GateState::Open; 2]);
    }

    #[test]
    fn a_new_load_starts_the_calm_again() {
        let clock = Clock::manual(Timestamp(1));
        let mut gate = Gate::new(clock.clone());
        gate.look(Duration::from_secs(9), Standing::Closed);
        gate.look(Duration::ZERO, Standing::Closed);
        clock.advance(Duration::from_secs(4));
        gate.look(Duration::from_secs(9), Standing::Closed);
        clock.advance(Duration::from_secs(4));
        gate.note_claim(Duration::from_secs(2));
        assert_eq!(
            gate.look(Duration::ZERO, Standing::Closed),
            GateState::Paused
        );
    }

    #[test]
    fn providers_that_wait_for_a_probe_are_given_one_after_calm() {
        let clock = Clock::manual(Timestamp(1));
        let mut gate = Gate::new(clock.clone());
        gate.look(Duration::ZERO, Standing::Open(CALM));
        assert_eq!(gate.look(Duration::ZERO, Standing::Due), GateState::Paused);
        for _ in 0..3 {
            clock.advance(CALM);
            assert_eq!(
                gate.look(Duration::ZERO, Standing::Due),
                GateState::Throttled
            );
        }
    }
}
