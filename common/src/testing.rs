//! Reports of tests to their runner, in addition to pass and fail. `tests/run` names a file for
//! each kind of report and prints it after the tests.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::config::Env;

/// Reports a test that cannot run on this machine, with the reason.
///
/// # Panics
/// If the report cannot be written.
pub fn skipped(test: &str, reason: &str) {
    report("POSTERN_TEST_SKIPPED", &format!("{test}: {reason}"));
}

/// Reports a measurement that no test asserts.
///
/// # Panics
/// If the report cannot be written.
pub fn note(text: &str) {
    report("POSTERN_TEST_NOTES", text);
}

/// Returns the path of a published test vector file in `tests/vectors`.
///
/// # Panics
/// If the file does not exist.
#[must_use]
pub fn vectors(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/vectors")
        .join(name);
    assert!(path.is_file(), "{} does not exist", path.display());
    path
}

fn report(variable: &str, text: &str) {
    let env = Env::of_process();
    let Some(path) = env.get(variable) else {
        return;
    };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("the report file can be opened");
    file.write_all(format!("{text}\n").as_bytes())
        .expect("the report file can be written");
}
