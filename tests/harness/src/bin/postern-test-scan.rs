//! Scans the logs of a test run for what must not be logged; see `postern_harness::sensitive`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Maximum number of findings that are printed.
const MAX_PRINTED: usize = 50;

fn main() -> ExitCode {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let Some(folder) = folder else {
        let _ = writeln!(std::io::stderr(), "usage: postern-test-scan FOLDER");
        return ExitCode::from(64);
    };
    let (findings, values, lines) = postern_harness::sensitive::scan(&folder);
    let mut out = std::io::stdout().lock();
    for finding in findings.iter().take(MAX_PRINTED) {
        let _ = writeln!(out, "{}: {}: {}", finding.place, finding.kind, finding.line);
    }
    let _ = writeln!(
        out,
        "{} of {values} secrets, addresses and texts in {lines} lines of logs",
        findings.len()
    );
    if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
