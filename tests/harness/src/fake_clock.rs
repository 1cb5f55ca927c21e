//! The clock of a process, which a test sets with libfaketime.

use std::path::{Path, PathBuf};

use crate::process::Program;

/// The library that replaces the clock of a process.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

/// The wall clock of processes; their monotonic clock stays as it is.
#[derive(Clone, Debug)]
pub struct FakeClock {
    library: &'static str,
    /// The offset, as libfaketime reads it every second.
    file: PathBuf,
}

impl FakeClock {
    /// Creates a clock that is right, in a file; `None` without libfaketime.
    pub fn new(file: PathBuf) -> Option<Self> {
        let library = LIBRARIES
            .into_iter()
            .find(|path| Path::new(path).exists())?;
        let clock = Self { library, file };
        clock.set(0);
        Some(clock)
    }

    /// Gives a program this clock.
    pub fn of(&self, program: Program) -> Program {
        program
            .env("LD_PRELOAD", self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string())
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Sets the clock this many seconds ahead.
    pub fn set(&self, ahead_s: i64) {
        // libfaketime may read the file at any time.
        let new = self.file.with_extension("clock.new");
        std::fs::write(&new, format!("{ahead_s:+}")).expect("the folder can be written");
        std::fs::rename(&new, &self.file).expect("the folder can be written");
    }
}
