//! `bench/run gateway`: measurements of the gateway, compared with nginx, HAProxy and an empty
//! Pingora pass-through.

mod cost;
mod latency;
mod reload;
mod routes;

use std::io;

use crate::bench::{BenchRun, OriginServer};
use crate::host;
use crate::report::BenchReport;

type TablePart = fn(&BenchRun, &OriginServer, &mut BenchReport) -> io::Result<()>;

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("gateway", "Gateway", bench.quick);
    report.notes.push(format!(
        "{}; {}; {}; {}.",
        host::line("nginx", &["-v"]),
        host::line("haproxy", &["-v"]),
        host::line("wrk", &["-v"]),
        host::line(&bench.oha().display().to_string(), &["--version"]),
    ));
    let origin = bench.origin()?;
    let parts: [(&str, TablePart); 7] = [
        ("cost", cost::all_on),
        ("new", cost::every_token_new),
        ("workers", cost::two_workers),
        ("routes", routes::matching),
        ("allocations", routes::allocations),
        ("latency", latency::paced),
        ("reload", reload::ten_thousand_routes),
    ];
    for (name, part) in parts {
        report.part(bench, name, |report| part(bench, &origin, report));
    }
    Ok(report)
}
