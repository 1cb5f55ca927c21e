//! An exhaustive model of concurrent exchanges of a temporary token over two Redis servers with delayed
//! or missing replication, promotions, demotions, fail-backs, restarts and lost responses.

use stateright::{Checker, Model, Property};

const AT_MOST_ONCE: &str = "at most one caller gets the token";

/// A server; the data are whether the token exists. The parts of its epoch change as in Redis: `process` (`run_id`) at a start, `history`
/// (`master_replid`) at a start as a master and at a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Server {
    process: u8,
    history: u8,
    is_master: bool,
    data: bool,
}

/// A master and its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair {
    servers: [Server; 2],
    /// The index of the server that the sentinels name as master. The other may not know yet.
    leader: usize,
    next: u8,
    /// The number of promotions and restarts left.
    faults: u8,
}

/// An event at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    /// The replica receives the whole data set.
    Replicate,
    Promote(usize),
    /// A former master becomes a replica.
    Demote(usize),
    /// Restart with these data: the present or the initial ones.
    Restart(usize, bool),
}

impl Pair {
    fn new(data: bool, faults: u8) -> Self {
        let master = Server {
            process: 0,
            history: 0,
            is_master: true,
            data,
        };
        let replica = Server {
            process: 1,
            is_master: false,
            ..master
        };
        Self {
            servers: [master, replica],
            leader: 0,
            next: 2,
            faults,
        }
    }

    fn epoch(&self, server: usize) -> (u8, u8) {
        (self.servers[server].process, self.servers[server].history)
    }

    fn possible(&self, initial: bool) -> Vec<Fault> {
        let other = 1 - self.leader;
        let mut faults = Vec::new();
        if self.servers[other].is_master {
            faults.push(Fault::Demote(other));
        } else if self.servers[other].data != self.servers[self.leader].data
            || self.servers[other].history != self.servers[self.leader].history
        {
            faults.push(Fault::Replicate);
        }
        if self.faults > 0 {
            if !self.servers[other].is_master {
                faults.push(Fault::Promote(other));
            }
            for server in 0..2 {
                let now = self.servers[server].data;
                faults.push(Fault::Restart(server, now));
                if now != initial {
                    faults.push(Fault::Restart(server, initial));
                }
            }
        }
        faults
    }

    fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Replicate => {
                let leader = self.servers[self.leader];
                let replica = &mut self.servers[1 - self.leader];
                (replica.data, replica.history) = (leader.data, leader.history);
            }
            Fault::Promote(server) => {
                self.servers[server].is_master = true;
                self.servers[server].history = self.next;
                self.leader = server;
                self.consume_fault();
            }
            Fault::Demote(server) => self.servers[server].is_master = false,
            Fault::Restart(server, data) => {
                let next = self.next;
                let server = &mut self.servers[server];
                (server.process, server.data) = (next, data);
                if server.is_master {
                    server.history = next;
                }
                self.consume_fault();
            }
        }
    }

    fn consume_fault(&mut self) {
        self.next += 1;
        self.faults -= 1;
    }
}

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
    pair: Pair,
    callers: [Caller; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Apply(Fault),
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
