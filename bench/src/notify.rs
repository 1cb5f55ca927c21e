//! `bench/run notify`: measurements of the notification upstream, compared with pgbench,
//! graphile-worker and pg-boss on the same PostgreSQL.

mod accept;
mod backlog;
mod peers;
mod priority;
mod recovery;
mod service;
mod sqlite;
mod status;

use std::io;

use crate::bench::{BenchRun, OriginServer};
use crate::host;
use crate::postgres::PostgresServer;
use crate::process::ChildProcess;
use crate::report::BenchReport;

/// Shared state of all parts.
struct NotifyRun<'a> {
    bench: &'a BenchRun,
    postgres: &'a PostgresServer,
    origin: &'a OriginServer,
    peers: &'a peers::QueuePeers,
}

type TablePart = fn(&NotifyRun<'_>, &mut BenchReport) -> io::Result<()>;

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("notify", "Notifications", bench);
    report.notes.push(format!(
        "{}; fsync and synchronous_commit on; {}; node {}; graphile-worker and pg-boss as bench/peers pins them.",
        host::line("psql", &["--version"]),
        host::line("wrk", &["-v"]),
        host::line("node", &["--version"]),
    ));
    let postgres = PostgresServer::of(bench)?;
    let origin = bench.origin()?;
    let peers = peers::single_rows(bench, &postgres, &mut report)?;
    let run = NotifyRun {
        bench,
        postgres: &postgres,
        origin: &origin,
        peers: &peers,
    };
    let parts: [(&str, TablePart); 8] = [
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

/// Starts a notification upstream with a database and waits until it is ready.
pub(crate) fn start(
    bench: &BenchRun,
    origin: &OriginServer,
    database: &str,
) -> io::Result<ChildProcess> {
    Ok(
        service::NotifyService::start(bench, origin, database, service::ProviderKind::NULL)?
            .process,
    )
}
