//! `bench/run auth`: measurements of authentication, and the cold start of each process.

mod exchange;
mod login;
mod refresh;
mod service;
mod start;

use std::io;

use crate::bench::BenchRun;
use crate::host;
use crate::report::BenchReport;
use service::AuthService;

type TablePart = fn(&BenchRun, &AuthService, &mut BenchReport) -> io::Result<()>;

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("auth", "Authentication", bench);
    let redis = host::line("redis-server", &["--version"]);
    report.notes.push(format!(
        "{}; {}.",
        redis.split(" sha").next().unwrap_or_default(),
        host::line("wrk", &["-v"])
    ));
    report.part(bench, "start", |report| start::cold(bench, report));
    let service = AuthService::start(bench)?;
    let parts: [(&str, TablePart); 4] = [
        ("exchange", exchange::once_each),
        ("refresh", refresh::rotating),
        ("login", login::overhead),
        ("timing", login::known_and_unknown),
    ];
    for (name, part) in parts {
        report.part(bench, name, |report| part(bench, &service, report));
    }
    Ok(report)
}
