//! The command `check` of all programs: its arguments, its results and its exit status.
//!
//! Input: results of checks. Output: a line for each, and the exit status. What has something to
//! check returns a [`CheckResult`].

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::exit::Exit;
use crate::output::Output;

/// The arguments that `check` has in all programs.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArguments {
    /// Configuration file, instead of that of --config.
    file: Option<PathBuf>,
    /// Fail with status 1 if there are warnings.
    #[arg(long)]
    pub strict: bool,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The name of the check.
    pub subject: String,
    /// The status with an explanation.
    pub status: CheckStatus,
}

/// The status of a check, with an explanation for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// No error was found.
    Passed(String),
    /// The setting works but is unsafe or unusual.
    Warning(String),
    /// An error, and its remedy.
    Fault(String),
    /// The check could not be made, and the reason.
    Unknown(String),
}

// === impl CheckArguments ===

impl CheckArguments {
    /// Returns the file to check: the argument, or `config`.
    #[must_use]
    pub fn file<'a>(&'a self, config: &'a Path) -> &'a Path {
        self.file.as_deref().unwrap_or(config)
    }

    /// Prints results. If a mistake prevented the checks, `results` is that mistake; it is printed as
    /// JSON as well, one object for each line of its message.
    ///
    /// # Errors
    /// The mistake; status 69 if a check found a fault; status 1 if there are warnings and `--strict`
    /// is given.
    pub fn report(
        &self,
        results: Result<Vec<CheckResult>, Exit>,
        output: Output,
    ) -> Result<(), Exit> {
        if let (Err(exit), true) = (&results, output.json) {
            for line in exit.message().lines() {
                let fault = CheckResult::fault("configuration", line);
                output.record("", &fault.to_json())?;
            }
        }
        let results = results?;
        for result in &results {
            output.record(&result.to_string(), &result.to_json())?;
        }
        let count = |is: fn(&CheckResult) -> bool| results.iter().filter(|it| is(it)).count();
        let warnings = count(|it| matches!(it.status, CheckStatus::Warning(_)));
        match count(CheckResult::is_fault) {
            0 if self.strict && warnings > 0 => Err(Exit::failed(format!("{warnings} warnings"))),
            0 => Ok(()),
            faults => {
                let all = results.len();
                Err(Exit::unavailable(format!(
                    "{faults} of {all} checks failed"
                )))
            }
        }
    }
}

// === impl CheckResult ===

impl CheckResult {
    /// Creates the result of a check that was made: what was found, or the fault.
    #[must_use]
    pub fn new(subject: impl Into<String>, outcome: Result<String, String>) -> Self {
        let status = outcome.map_or_else(CheckStatus::Fault, CheckStatus::Passed);
        let subject = subject.into();
        Self { subject, status }
    }

    /// Creates the result of a check that found no error.
    #[must_use]
    pub fn passed(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(subject, Ok(detail.into()))
    }

    /// Creates the result of a check that found an error.
    #[must_use]
    pub fn fault(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(subject, Err(detail.into()))
    }

    /// Creates the result of a check that found an unsafe or unusual setting.
    #[must_use]
    pub fn warning(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        let (subject, status) = (subject.into(), CheckStatus::Warning(detail.into()));
        Self { subject, status }
    }

    /// Creates the result of a check that could not be made.
    #[must_use]
    pub fn unknown(subject: impl Into<String>, reason: impl Into<String>) -> Self {
        let (subject, status) = (subject.into(), CheckStatus::Unknown(reason.into()));
        Self { subject, status }
    }

    /// Creates the result for a configuration that was read with placeholders, see
    /// [`IdentityConfig::assumed_settings`](crate::identity::IdentityConfig::assumed_settings).
    /// Returns `None` if there are none.
    #[must_use]
    pub fn of_assumed(variables: &[&str]) -> Option<Self> {
        let names = variables.join(", ");
        let detail = format!("checked without {names}, which the process needs to start");
        (!variables.is_empty()).then(|| Self::unknown("identity", detail))
    }

    /// Creates a warning if processes can share the database and not the cache, each of which would
    /// then count limits and keep tokens for itself.
    #[must_use]
    pub fn of_unshared_cache(database: &str, cache: &str) -> Option<Self> {
        let detail =
            "memory: is for one process only; name a Redis server before you start a second one";
        let is_unshared = database.starts_with("postgres") && cache.starts_with("memory:");
        is_unshared.then(|| Self::warning("cache", detail))
    }

    /// Returns whether the check found an error.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self.status, CheckStatus::Fault(_))
    }

    /// Returns whether the check found an error or an unsafe setting.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        matches!(self.status, CheckStatus::Fault(_) | CheckStatus::Warning(_))
    }

    /// Returns the result as JSON: `check`, `status` (`ok`, `warning`, `fault` or `unknown`) and
    /// `detail`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (status, detail) = self.status.parts();
        json!({ "check": self.subject, "status": status, "detail": detail })
    }
}

// === impl CheckStatus ===

impl CheckStatus {
    /// Returns the name in JSON and the explanation.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(text) => ("ok", text),
            Self::Warning(text) => ("warning", text),
            Self::Fault(text) => ("fault", text),
            Self::Unknown(text) => ("unknown", text),
        }
    }
}

impl std::fmt::Display for CheckResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, text) = self.status.parts();
        let word = match self.needs_attention() {
            true => word.to_uppercase(),
            false => word.to_owned(),
        };
        write!(f, "{word:<7} {}: {text}", self.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_in_memory_is_unsafe_with_a_shared_database() {
        let warns = |database, cache| CheckResult::of_unshared_cache(database, cache).is_some();
        assert!(warns("postgres://db/auth", "memory:"));
        assert!(warns("postgresql://db/auth", "memory:"));
        assert!(!warns("postgres://db/auth", "redis://cache"));
        assert!(!warns("sqlite://auth.db", "memory:"));
    }

    #[test]
    fn exit_status_depends_on_faults_and_strictness() {
        let status = |results: Vec<CheckResult>, strict| {
            let arguments = CheckArguments { file: None, strict };
            let reported = arguments.report(Ok(results), Output { json: true });
            reported.map_or_else(|exit| exit.status(), |()| 0)
        };
        let warning = || CheckResult::warning("b", "unsafe");
        let all = || vec![CheckResult::passed("a", "good"), warning()];
        assert_eq!((status(all(), false), status(all(), true)), (0, 1));
        let fault = || vec![warning(), CheckResult::fault("c", "bad")];
        assert_eq!((status(fault(), false), status(fault(), true)), (69, 69));
    }
}
