//! Exhaustive models of a temporary token and of a token family over two Redis servers with delayed
//! or missing replication, promotions, demotions, fail-backs, restarts and lost responses.

mod family;
mod token;

/// A server. The parts of its epoch change as in Redis: `process` (`run_id`) at a start, `history`
/// (`master_replid`) at a start as a master and at a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Server<D> {
    process: u8,
    history: u8,
    is_master: bool,
    data: D,
}

/// A master and its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair<D> {
    servers: [Server<D>; 2],
    /// The index of the server that the sentinels name as master. The other may not know yet.
    leader: usize,
    next: u8,
    /// The number of promotions and restarts left.
    faults: u8,
}

/// An event at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault<D> {
    /// The replica receives the whole data set.
    Replicate,
    Promote(usize),
    /// A former master becomes a replica.
    Demote(usize),
    /// Restart with these data: the present or the initial ones.
    Restart(usize, D),
}

impl<D: Copy + Eq> Pair<D> {
    fn new(data: D, faults: u8) -> Self {
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

    fn possible(&self, initial: D) -> Vec<Fault<D>> {
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

    fn apply(&mut self, fault: Fault<D>) {
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
