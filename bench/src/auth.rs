//! `bench/run auth`: every figure of authentication, and the cold start of each process.

mod exchange;
mod login;
mod refresh;
mod service;
mod start;

use std::io;

use crate::bench::Bench;
use crate::host;
use crate::report::Report;
use service::Service;

type Part = fn(&Bench, &Service, &mut Report) -> io::Result<()>;

/// Runs the table.
pub(crate) fn measure(bench: &Bench) -> io::Result<Report> {
    let mut report = Report::new("auth", "Authentication", bench.quick);
    let redis = host::line("redis-server", &["--version"]);
    report.notes.push(format!(
        "{}; {}.",
        redis.split(" sha").next().unwrap_or_default(),
        host::line("wrk", &["-v"])
    ));
    report.part(bench, "start", |report| start::cold(bench, report));
    let service = Service::start(bench)?;
    let parts: [(&str, Part); 4] = [
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
