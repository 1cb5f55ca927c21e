//! `bench/run gateway`: every figure of the gateway, beside nginx, HAProxy and an empty Pingora
//! pass-through.

mod cost;
mod latency;
mod reload;
mod routes;

use std::io;

use crate::bench::{Bench, Origin};
use crate::host;
use crate::report::Report;

type Part = fn(&Bench, &Origin, &mut Report) -> io::Result<()>;

/// Runs the table.
pub(crate) fn measure(bench: &Bench) -> io::Result<Report> {
    let mut report = Report::new("gateway", "Gateway", bench.quick);
    report.notes.push(format!(
        "{}; {}; {}; {}.",
        host::line("nginx", &["-v"]),
        host::line("haproxy", &["-v"]),
        host::line("wrk", &["-v"]),
        host::line(&bench.oha().display().to_string(), &["--version"]),
    ));
    let origin = bench.origin()?;
    let parts: [(&str, Part); 7] = [
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
