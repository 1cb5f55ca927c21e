//! Process exit: one line on standard error, and an exit status of `sysexits.h`.

use std::process::ExitCode;

/// Parses the arguments of the process. Help and version are printed.
pub fn parse_arguments<P: clap::Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if error.use_stderr() {
            return Exit::report(Err(Exit::usage(error.to_string().trim_end())));
        }
        let printed = error.print();
        printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
    })
}

/// Parses the arguments of the process as [`parse_arguments`] does, and runs a command.
///
/// Returns the exit code of the process. The message of an error is printed to standard error.
pub async fn run_command<P: clap::Parser, F>(run: impl FnOnce(P) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Exit>>,
{
    match parse_arguments() {
        Ok(arguments) => Exit::report(Box::pin(run(arguments)).await),
        Err(code) => code,
    }
}

/// A reason why a process cannot start or continue, with its exit status.
#[derive(Debug)]
pub struct Exit {
    status: u8,
    message: String,
}

impl Exit {
    /// Creates an error for a wrong configuration or command line (`EX_USAGE`, 64).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(64, message.into())
    }

    /// Creates an error for a check that was executed and failed (1).
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(1, message.into())
    }

    /// Creates an error for an unavailable resource such as a database, port or directory
    /// (`EX_UNAVAILABLE`, 69).
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(69, message.into())
    }

    fn new(status: u8, message: String) -> Self {
        Self { status, message }
    }

    /// Returns the same error as a temporary failure, which a caller such as a mail server retries
    /// (`EX_TEMPFAIL`, 75).
    #[must_use]
    pub fn temporary(self) -> Self {
        Self { status: 75, ..self }
    }

    /// Returns whether this is a temporary failure, see [`Exit::temporary`].
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.status == 75
    }

    /// Returns whether the configuration or the command line is wrong, see [`Exit::usage`].
    #[must_use]
    pub fn is_usage(&self) -> bool {
        self.status == 64
    }

    /// Returns the message for standard error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Converts the result of `main` into an exit code and prints the message of an error.
    #[expect(
        clippy::print_stderr,
        reason = "the error message of a process goes to standard error"
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
