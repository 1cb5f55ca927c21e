//! A process of Postern that can be killed, suspended, restarted and given another time.

use std::path::PathBuf;

use crate::FakeClock;
use crate::process::{Process, Program};

/// A process with its place in the installation.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// Port of the public listener.
    pub(super) port: u16,
    /// The configuration file.
    pub(super) config: PathBuf,
    pub(super) process: Process,
    /// Its clock; `None` without libfaketime, and for gateways.
    pub(super) clock: Option<FakeClock>,
}

impl Node {
    /// Prepares a process; its clock can be changed if libfaketime is installed.
    pub(super) fn new(name: String, port: u16, config: PathBuf, program: Program) -> Self {
        let is_gateway = name.starts_with("gateway");
        let clock = FakeClock::new(config.with_extension("clock")).filter(|_| !is_gateway);
        let program = match &clock {
            Some(clock) => clock.of(program),
            None => program,
        };
        Self {
            name,
            port,
            config,
            process: Process::stopped(program),
            clock,
        }
    }

    /// Sets the clock of the process this many seconds ahead.
    pub(super) fn set_clock(&self, ahead_s: i64) {
        if let Some(clock) = &self.clock {
            clock.set(ahead_s);
        }
    }
}
