//! Check of a configuration text, as `postern-proxy check` and `postern-proxy diff` do it.

use std::sync::Arc;

use postern_core::clock::Timestamp;
use postern_core::config::{ConfigFile, Env, LocatedMistake};
use postern_core::decode::Object;
use serde::{Deserialize, Serialize};

use super::warnings::{ConfigWarning, FoundWarnings};
use crate::config::Config;
use crate::routing::difference::{Difference, differences_within, uncompared_changes};
use crate::routing::route_tests::test_failures;

/// Maximum kinds of requests that are compared: a tenth of those of the command.
const MAX_COMPARED_REQUESTS: usize = 100_000;
const MAX_DIFFERENCES: usize = 200;

/// Without this table nobody could change the configuration over the admin listener again.
const LOCKOUT: &str = "is required for changes over the admin API: after the next start it would \
     refuse every request. Remove it in the file itself";

/// What a check needs besides the text.
#[derive(Clone)]
pub(crate) struct CheckRules {
    pub(crate) env: Env,
    /// Records files that the configuration names and that cannot be used.
    pub(crate) check_files: fn(&Object<'_>, &Config),
    pub(crate) restart_needed: RestartNeeded,
}

/// A comparison with the settings with which the process has started.
pub(crate) type RestartNeeded = Arc<dyn Fn(&Config) -> Vec<&'static str> + Send + Sync>;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport {
    /// All mistakes, at most 100. The other members are empty if there is one.
    pub(crate) errors: Vec<LocatedMistake>,
    pub(crate) warnings: Vec<ConfigWarning>,
    pub(crate) tests: Vec<TestResult>,
    /// Requests that the configuration in force decides differently, at most 200.
    pub(crate) differences: Vec<Difference>,
    pub(crate) difference_count: usize,
    /// Why the differences are unknown, if they are.
    pub(crate) differences_error: Option<String>,
    /// Whether a request that is rejected now would no longer be.
    pub(crate) widened: bool,
    /// Changed settings that take effect at the next start.
    pub(crate) restart_needed: Vec<&'static str>,
}

/// The result of a `[[test]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TestResult {
    file: String,
    line: usize,
    request: String,
    pub(crate) ok: bool,
    detail: String,
}

/// A number of changed decisions, in words, with examples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeSummary {
    pub(crate) changes: usize,
    pub(crate) widened: usize,
    pub(crate) text: String,
}

/// A decoded text, with the offsets of its tests.
type Decoded = (Config, Vec<usize>, FoundWarnings);

pub(super) fn check(
    files: &ConfigFile,
    in_force: &ConfigFile,
    rules: &CheckRules,
    now: Timestamp,
) -> CheckReport {
    let decoded = files.check(|root| decode(root, rules, now));
    let (config, tests, warnings) = match decoded {
        Ok(decoded) => decoded,
        Err(errors) => {
            return CheckReport {
                errors,
                ..CheckReport::default()
            };
        }
    };
    let mut report = CheckReport {
        warnings: warnings.locate(files),
        tests: test_results(files, &config, &tests),
        restart_needed: (rules.restart_needed)(&config),
        ..CheckReport::default()
    };
    match compare(in_force, &config, &rules.env) {
        Ok((mut differences, uncompared)) => {
            report.differences_error = uncompared;
            report.widened = differences.iter().any(|it| it.widened);
            report.difference_count = differences.len();
            // Those that matter most are kept.
            differences.sort_by_key(|it| !it.widened);
            differences.truncate(MAX_DIFFERENCES);
            report.differences = differences;
        }
        Err(error) => report.differences_error = Some(error),
    }
    report
}

fn decode(root: &Object<'_>, rules: &CheckRules, now: Timestamp) -> Option<Decoded> {
    let config = Config::decode(root, &rules.env)?;
    (rules.check_files)(root, &config);
    let admin = config.admin.as_ref();
    if admin.is_none_or(|admin| admin.token.is_none()) {
        root.fail_at("admin", "missing_field", format!("token_env {LOCKOUT}"));
    }
    if !root.is_good() {
        return None;
    }
    let tests = config.tests.iter();
    let tests = tests.map(|test| root.offset_at(&test.place).unwrap_or_default());
    let (tests, warnings) = (tests.collect(), FoundWarnings::of(root, &config, now));
    Some((config, tests, warnings))
}

fn test_results(files: &ConfigFile, config: &Config, offsets: &[usize]) -> Vec<TestResult> {
    let failures = test_failures(config);
    let places = files.places(offsets).into_iter();
    let results = config.tests.iter().zip(failures).zip(places);
    results
        .map(|((test, failure), (file, line))| TestResult {
            file: file.to_owned(),
            line,
            request: format!("{} {}", test.request.0, test.request.1),
            ok: failure.is_none(),
            detail: failure.unwrap_or_default(),
        })
        .collect()
}

/// Returns the requests that two configurations decide differently, and what is not compared.
fn compare(
    old: &ConfigFile,
    new: &Config,
    env: &Env,
) -> Result<(Vec<Difference>, Option<String>), String> {
    let old = old.check(|root| Config::decode(root, env)).map_err(|_| {
        // For example because a variable is no longer set in a new process.
        "the previous configuration cannot be read again".to_owned()
    })?;
    let found = differences_within(&old, new, MAX_COMPARED_REQUESTS);
    let found = found.map_err(|error| error.to_string())?;
    Ok((found, uncompared_changes(&old, new)))
}

pub(super) fn summarize(old: &ConfigFile, new: &ConfigFile, env: &Env) -> ChangeSummary {
    let new = new.check(|root| Config::decode(root, env));
    let new = new.map_err(|_| "the configuration cannot be read again".to_owned());
    match new.and_then(|new| compare(old, &new, env)) {
        Ok((differences, _)) => {
            let changes = differences.len();
            let widened = differences.iter().filter(|it| it.widened).count();
            ChangeSummary {
                changes,
                widened,
                text: format!("changed decisions: {changes}, widened: {widened}"),
            }
        }
        Err(error) => ChangeSummary {
            text: format!("changes unknown: {error}"),
            ..ChangeSummary::default()
        },
    }
}

impl CheckReport {
    /// Returns whether the text loads and all tests pass.
    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty() && self.tests.iter().all(|test| test.ok)
    }
}

impl TestResult {
    /// Returns the place and the failure in one line.
    pub(crate) fn describe(&self) -> String {
        let (file, line) = (&self.file, self.line);
        format!("{file}:{line}: test \"{}\": {}", self.request, self.detail)
    }
}
