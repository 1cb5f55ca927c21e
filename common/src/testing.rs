//! What tests of several packages tell their runner, beside passed and failed: `tests/run` names a file for each and
//! shows it after the tests.

use std::fs::OpenOptions;
use std::io::Write;

use crate::config::Env;

/// Reports a test that this machine cannot run, and why.
///
/// # Panics
/// If the report cannot be written.
pub fn skipped(test: &str, why: &str) {
    report("POSTERN_TEST_SKIPPED", &format!("{test}: {why}"));
}

/// Reports a figure that no test asserts.
///
/// # Panics
/// If the report cannot be written.
pub fn note(text: &str) {
    report("POSTERN_TEST_NOTES", text);
}

fn report(variable: &str, text: &str) {
    let env = Env::of_process();
    let Some(path) = env.get(variable) else { return };
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the report is writable");
    file.write_all(format!("{text}\n").as_bytes()).expect("the report is writable");
}
