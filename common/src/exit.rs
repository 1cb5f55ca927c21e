//! How a process ends: one clear line on standard error, and a status from `sysexits.h`.

use std::process::ExitCode;

/// A reason not to start, or to stop, told to the person who started the process.
#[derive(Debug)]
pub struct Exit {
    status: u8,
    message: String,
}

impl Exit {
    /// The configuration or the command line is wrong (`EX_USAGE`, 64).
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            status: 64,
            message: message.into(),
        }
    }

    /// Something that it needs is away: a store, a port, a folder (`EX_UNAVAILABLE`, 69).
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            status: 69,
            message: message.into(),
        }
    }

    /// The same reason, for a caller that will try again, such as a mail server (`EX_TEMPFAIL`,
    /// 75).
    #[must_use]
    pub fn for_now(self) -> Self {
        Self { status: 75, ..self }
    }

    /// Whether it may be over soon, see [`Exit::for_now`].
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        self.status == 75
    }

    /// What the person is told.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The process status.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Turns the outcome of `main` into its status, telling the reason once.
    #[expect(
        clippy::print_stderr,
        reason = "the last word of a process goes to its terminal"
    )]
    pub fn report(outcome: Result<(), Self>) -> ExitCode {
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(exit) => {
                eprintln!("{}", exit.message);
                ExitCode::from(exit.status)
            }
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}
