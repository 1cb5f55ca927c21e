//! A process of Postern that can be killed, suspended, restarted and given another time.

use std::path::PathBuf;

use crate::program::{Program, Running};

/// The library that replaces the clock of a process.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

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
    /// The offset of its clock, as libfaketime reads it; `None` without that library.
    clock: Option<PathBuf>,
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
        let library = LIBRARIES
            .into_iter()
            .find(|path| std::path::Path::new(path).exists());
        if let Some(library) = library {
            let file = self.config.with_extension("clock");
            std::fs::write(&file, "+0").expect("the folder can be written");
            self.program = self
                .program
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", file.display().to_string())
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            self.clock = Some(file);
        }
        self
    }

    /// Returns whether its clock can be changed.
    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Sets the clock of the process this many seconds ahead.
    pub(super) fn set_clock(&self, ahead_s: i64) {
        if let Some(file) = &self.clock {
            // libfaketime may read the file at any time.
            let new = file.with_extension("clock.new");
            std::fs::write(&new, format!("{ahead_s:+}")).expect("the folder can be written");
            std::fs::rename(&new, file).expect("the folder can be written");
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
