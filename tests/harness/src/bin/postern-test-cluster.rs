//! Runs a complete installation under faults; see `postern_harness::cluster`. `tests/cluster` starts it.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use postern_harness::cluster::options::Options;
use postern_harness::cluster::run::run;

/// Exit status if a guarantee is violated.
const VIOLATED: u8 = 1;
/// Exit status if the run is impossible: `EX_UNAVAILABLE` of `sysexits.h`.
const UNAVAILABLE: u8 = 69;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let mut out = std::io::stdout();
    let report = match Box::pin(run(&options, &mut out)).await {
        Ok(report) => report,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "tests/cluster: {error}");
            return ExitCode::from(UNAVAILABLE);
        }
    };
    let _ = writeln!(out, "{}", report.summary);
    for violation in &report.violations {
        let _ = writeln!(out, "violation: {violation}");
    }
    let _ = writeln!(out, "{} violations", report.violations.len());
    match report.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(VIOLATED),
    }
}
