//! `bench/run gateway`: measurements of the gateway, compared with nginx, HAProxy and an empty
//! Pingora pass-through.

mod console;
mod cost;
mod edge;
mod latency;
mod reload;
mod routes;

use std::io;

use crate::bench::{BenchRun, OriginServer};
use crate::host;
use crate::peers;
use crate::report::BenchReport;

type TablePart = fn(&BenchRun, &OriginServer, &mut BenchReport) -> io::Result<()>;

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("gateway", "Gateway", bench);
    let generators = [
        host::line("wrk", &["-v"]),
        host::line("h2load", &["--version"]),
        host::line(&bench.oha().display().to_string(), &["--version"]),
    ];
    let installed = generators.into_iter().filter(|line| !line.is_empty());
    let lines: Vec<String> = [peers::versions(bench)]
        .into_iter()
        .chain(installed)
        .collect();
    report.notes.push(format!("{}.", lines.join("; ")));
    let origin = bench.origin()?;
    let parts: [(&str, TablePart); 9] = [
        ("cost", cost::all_on),
        ("new", cost::every_token_new),
        ("workers", cost::two_workers),
        ("routes", routes::matching),
        ("allocations", routes::allocations),
        ("latency", latency::paced),
        ("reload", reload::ten_thousand_routes),
        ("edge", edge::traffic),
        ("console", console::open_pages),
    ];
    for (name, part) in parts {
        report.part(bench, name, |report| part(bench, &origin, report));
    }
    Ok(report)
}
