//! `bench/run notify`: every figure of the notification upstream, beside pgbench, graphile-worker
//! and pg-boss on the same PostgreSQL.

mod accept;
mod backlog;
mod peers;
mod priority;
mod recovery;
mod service;
mod sqlite;
mod status;

use std::io;

use crate::bench::{Bench, Origin};
use crate::host;
use crate::postgres::Postgres;
use crate::process::Process;
use crate::report::Report;

/// What every part needs.
struct Run<'a> {
    bench: &'a Bench,
    postgres: &'a Postgres,
    origin: &'a Origin,
    peers: &'a peers::Peers,
}

type Part = fn(&Run<'_>, &mut Report) -> io::Result<()>;

/// Runs the table.
pub(crate) fn measure(bench: &Bench) -> io::Result<Report> {
    let mut report = Report::new("notify", "Notifications", bench.quick);
    report.notes.push(format!(
        "{}; fsync and synchronous_commit on; {}; node {}; graphile-worker and pg-boss as bench/peers pins them.",
        host::line("psql", &["--version"]),
        host::line("wrk", &["-v"]),
        host::line("node", &["--version"]),
    ));
    let postgres = Postgres::of(bench)?;
    let origin = bench.origin()?;
    let peers = peers::single_rows(bench, &postgres, &mut report)?;
    let run = Run {
        bench,
        postgres: &postgres,
        origin: &origin,
        peers: &peers,
    };
    let parts: [(&str, Part); 8] = [
        ("accept", accept::durable),
        ("both", accept::at_once),
        ("backlog", backlog::drained),
        ("priority", priority::in_front_of_a_backlog),
        ("status", status::read),
        ("recovery", recovery::after_a_kill),
        ("held", recovery::held_session),
        ("sqlite", sqlite::over_http),
    ];
    for (name, part) in parts {
        report.part(bench, name, |report| part(&run, report));
    }
    Ok(report)
}

/// Starts one over a database and returns when it is ready.
pub(crate) fn start(bench: &Bench, origin: &Origin, database: &str) -> io::Result<Process> {
    Ok(service::Service::start(bench, origin, database, service::Carrier::NULL)?.process)
}
