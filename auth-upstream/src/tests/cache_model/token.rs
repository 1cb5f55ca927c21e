//! Concurrent exchanges of a temporary token.

use stateright::{Checker, Model, Property};

use super::{Fault, Pair};

const AT_MOST_ONCE: &str = "at most one caller gets the token";

/// The part of the epoch to which a token is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Nothing,
    RunId,
    Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Caller {
    /// Waiting for a response, with this number of repetitions left if responses are lost.
    Asks(u8),
    Won,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Whether the token exists. A mark of its use is equivalent, with the opposite value.
    pair: Pair<bool>,
    callers: [Caller; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Apply(Fault<bool>),
    Take {
        caller: usize,
        server: usize,
        is_lost: bool,
    },
}

impl State {
    fn winners(&self) -> usize {
        self.callers
            .iter()
            .filter(|caller| **caller == Caller::Won)
            .count()
    }
}

impl Model for Binding {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            pair: Pair::new(true, 4),
            callers: [Caller::Asks(1); 3],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.pair.possible(true).into_iter().map(Action::Apply));
        for (caller, asks) in state.callers.iter().enumerate() {
            let Caller::Asks(repeats) = asks else {
                continue;
            };
            // A former master accepts commands until it learns of the promotion.
            for server in (0..2).filter(|server| state.pair.servers[*server].is_master) {
                actions.push(Action::Take {
                    caller,
                    server,
                    is_lost: false,
                });
                if *repeats > 0 {
                    actions.push(Action::Take {
                        caller,
                        server,
                        is_lost: true,
                    });
                }
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Apply(fault) => next.pair.apply(fault),
            Action::Take {
                caller,
                server,
                is_lost,
            } => {
                let exists = std::mem::take(&mut next.pair.servers[server].data);
                let matches = match self {
                    Self::Nothing => true,
                    Self::RunId => next.pair.epoch(server).0 == 0,
                    Self::Epoch => next.pair.epoch(server) == (0, 0),
                };
                next.callers[caller] = match (state.callers[caller], exists && matches) {
                    (Caller::Asks(repeats), _) if is_lost => Caller::Asks(repeats - 1),
                    (_, true) => Caller::Won,
                    (_, false) => Caller::Refused,
                };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AT_MOST_ONCE, |_, state: &State| state.winners() <= 1),
            Property::sometimes("one caller gets it", |_, state: &State| {
                state.winners() == 1
            }),
        ]
    }
}

#[test]
fn token_bound_to_its_epoch_has_one_winner_at_most() {
    let checker = Binding::Epoch.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(
        checker.unique_state_count() > 10_000,
        "{} states",
        checker.unique_state_count()
    );
}

/// Shows that the model finds violations.
#[test]
fn weaker_bindings_violate_the_property() {
    for binding in [Binding::Nothing, Binding::RunId] {
        let checker = binding.checker().spawn_bfs().join();
        let path = checker
            .discovery(AT_MOST_ONCE)
            .unwrap_or_else(|| panic!("{binding:?} should not hold"));
        let actions = path.into_actions();
        if binding == Binding::RunId {
            let back = Action::Apply(Fault::Promote(0));
            assert!(actions.contains(&back), "a fail-back: {actions:?}");
        }
    }
}
