//! A process of Postern that can be killed, suspended, restarted and given another time.

use std::path::PathBuf;

use crate::FakeClock;
use crate::program::{Program, Running};

/// A process that can be started again with the same configuration.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// Port of the public listener.
    pub(super) port: u16,
    /// The configuration file.
    pub(super) config: PathBuf,
    program: Program,
    running: Option<Running>,
    /// Its clock; `None` without libfaketime.
    clock: Option<FakeClock>,
}

// === impl Node ===

impl Node {
    /// Prepares a process.
    pub(super) fn new(name: String, port: u16, config: PathBuf, program: Program) -> Self {
        Self {
            name,
            port,
            config,
            program,
            running: None,
            clock: None,
        }
    }

    /// Makes the clock of the process changeable, if libfaketime is installed.
    pub(super) fn with_clock(mut self) -> Self {
        self.clock = FakeClock::new(self.config.with_extension("clock"));
        if let Some(clock) = &self.clock {
            self.program = clock.of(self.program);
        }
        self
    }

    /// Returns whether its clock can be changed.
    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Sets the clock of the process this many seconds ahead.
    pub(super) fn set_clock(&self, ahead_s: i64) {
        if let Some(clock) = &self.clock {
            clock.set(ahead_s);
        }
    }

    /// Starts the process and waits until it is ready.
    pub(super) async fn start(&mut self) {
        let mut running = self.program.start();
        running.until_ready().await;
        self.running = Some(running);
    }

    /// Kills the process.
    pub(super) async fn kill(&mut self) {
        self.running().kill().await;
    }

    /// Stops the process with SIGTERM and returns its exit status.
    pub(super) async fn stop(&mut self) -> Option<i32> {
        self.running().stop("TERM").await.status
    }

    /// Sends a signal.
    pub(super) async fn signal(&self, signal: &str) {
        let running = self.running.as_ref().expect("the process is running");
        running.signal(signal).await;
    }

    fn running(&mut self) -> Running {
        self.running.take().expect("the process is running")
    }
}
