//! The schedule of faults: a seed gives the same faults at the same times.

use std::fmt;
use std::time::Duration;

use super::history::Affected;

/// Replicas of each service.
pub const REPLICAS: usize = 3;

/// A process of Postern.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Process {
    /// A gateway.
    Gateway(usize),
    /// A replica of the authentication service.
    Auth(usize),
    /// A replica of the notification service.
    Notify(usize),
}

/// A server of which the packets are dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Server {
    /// A process of Postern.
    Process(Process),
    /// The PostgreSQL server that accepts writes.
    Database,
    /// A master of the Redis Cluster.
    Cache,
}

/// A fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// A process is killed and started again.
    Kill(Process),
    /// A process is stopped with SIGTERM and started again.
    Restart(Process),
    /// A process is suspended and resumed.
    Suspend(Process, Duration),
    /// The primary of PostgreSQL is killed, the standby promoted, and the old primary becomes a standby.
    DatabaseFailover,
    /// A master of the Redis Cluster is killed; its replica takes over.
    CacheFailover,
    /// A replica of the Redis Cluster takes over from its master, as for maintenance.
    CacheSwitchover,
    /// All packets to a server are dropped without an answer.
    Partition(Server, Duration),
    /// The disk of the PostgreSQL primary is full.
    FullDisk(Duration),
    /// The clock of a process is this many seconds ahead (or behind) for a time. For hours, the process is killed and
    /// started under the wrong clock.
    ClockStep(Process, i64, Duration),
    /// The configuration of a gateway is changed.
    Reload(usize),
}

/// Seconds by which the clock of a replica of the notification service is ahead: behind what it stores, and beyond the
/// times for which idempotency keys and records are kept.
const NOTIFY_CLOCKS_S: [i64; 5] = [-400 * DAY_S, -300, 75, 25 * 3600, 100 * DAY_S];
const DAY_S: i64 = 86_400;

/// Names of the kinds of faults.
pub const KINDS: [&str; 10] = [
    "kill",
    "restart",
    "suspend",
    "database-failover",
    "cache-failover",
    "cache-switchover",
    "partition",
    "full-disk",
    "clock-step",
    "reload",
];

/// Faults with the pauses before them.
#[derive(Clone, Debug)]
pub struct Schedule {
    random: fastrand::Rng,
    kinds: Vec<&'static str>,
    interval: Duration,
}

impl Schedule {
    /// Creates the schedule of a seed, with faults of these kinds.
    pub fn new(seed: u64, kinds: Vec<&'static str>, interval: Duration) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            kinds,
            interval,
        }
    }

    fn process(&mut self) -> Process {
        let number = self.random.usize(0..REPLICAS);
        match self.random.u8(0..3) {
            0 => Process::Gateway(number),
            1 => Process::Auth(number),
            _ => Process::Notify(number),
        }
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range.start * 1000..range.end * 1000))
    }

    fn fault(&mut self, kind: &str) -> Fault {
        match kind {
            "kill" => Fault::Kill(self.process()),
            "restart" => Fault::Restart(self.process()),
            "suspend" => {
                let process = self.process();
                Fault::Suspend(process, self.seconds(1..20))
            }
            "database-failover" => Fault::DatabaseFailover,
            "cache-failover" => Fault::CacheFailover,
            "cache-switchover" => Fault::CacheSwitchover,
            "partition" => {
                let server = match self.random.u8(0..4) {
                    0 => Server::Database,
                    1 => Server::Cache,
                    _ => Server::Process(self.process()),
                };
                Fault::Partition(server, self.seconds(1..12))
            }
            "full-disk" => Fault::FullDisk(self.seconds(2..8)),
            "clock-step" => {
                let number = self.random.usize(0..REPLICAS);
                let (process, seconds) = if self.random.bool() {
                    // Tokens are issued and verified by different processes: both directions matter.
                    let seconds = self.random.i64(20..90) * if self.random.bool() { 1 } else { -1 };
                    (Process::Auth(number), seconds)
                } else {
                    let seconds = self.random.choice(NOTIFY_CLOCKS_S).unwrap_or_default();
                    (Process::Notify(number), seconds)
                };
                Fault::ClockStep(process, seconds, self.seconds(5..15))
            }
            _ => Fault::Reload(self.random.usize(0..REPLICAS)),
        }
    }
}

impl Iterator for Schedule {
    type Item = (Duration, Fault);

    fn next(&mut self) -> Option<Self::Item> {
        let kind = *self.random.choice(&self.kinds)?;
        let half = self.interval / 2;
        let pause = half + Duration::from_secs_f64(self.interval.as_secs_f64() * self.random.f64());
        Some((pause, self.fault(kind)))
    }
}

impl Process {
    /// Returns what a fault of this process affects.
    pub fn affected(self) -> Affected {
        match self {
            Self::Gateway(_) => Affected::Gateway,
            Self::Auth(_) => Affected::Auth,
            Self::Notify(_) => Affected::Notify,
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(number) => write!(to, "gateway {number}"),
            Self::Auth(number) => write!(to, "auth {number}"),
            Self::Notify(number) => write!(to, "notify {number}"),
        }
    }
}

impl Fault {
    /// Returns what it affects.
    pub fn affected(self) -> Affected {
        match self {
            Self::Kill(process)
            | Self::Restart(process)
            | Self::Suspend(process, _)
            | Self::ClockStep(process, ..)
            | Self::Partition(Server::Process(process), _) => process.affected(),
            Self::DatabaseFailover | Self::FullDisk(_) | Self::Partition(Server::Database, _) => {
                Affected::Database
            }
            Self::CacheFailover | Self::CacheSwitchover | Self::Partition(Server::Cache, _) => {
                Affected::Cache
            }
            Self::Reload(_) => Affected::Gateway,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(process) => write!(to, "kill {process}"),
            Self::Restart(process) => write!(to, "restart {process}"),
            Self::Suspend(process, time) => write!(to, "suspend {process} for {time:.1?}"),
            Self::DatabaseFailover => to.write_str("database-failover"),
            Self::CacheFailover => to.write_str("cache-failover"),
            Self::CacheSwitchover => to.write_str("cache-switchover"),
            Self::Partition(Server::Process(process), time) => {
                write!(to, "partition of {process} for {time:.1?}")
            }
            Self::Partition(Server::Database, time) => {
                write!(to, "partition of PostgreSQL for {time:.1?}")
            }
            Self::Partition(Server::Cache, time) => {
                write!(to, "partition of a Redis master for {time:.1?}")
            }
            Self::FullDisk(time) => write!(to, "full-disk of PostgreSQL for {time:.1?}"),
            Self::ClockStep(process, seconds, time) => {
                write!(to, "clock-step of {process} by {seconds} s for {time:.1?}")
            }
            Self::Reload(number) => write!(to, "reload gateway {number}"),
        }
    }
}
