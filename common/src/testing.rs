//! What tests of several packages tell their runner, beside passed and failed: `tests/run` names a
//! file for each and shows it after the tests.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

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

/// Returns a file of the published vectors in `tests/vectors`.
///
/// # Panics
/// If there is no such file: a clone has all of them.
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
        .expect("the report is writable");
    file.write_all(format!("{text}\n").as_bytes())
        .expect("the report is writable");
}
