use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::NotifyRun;
use super::peers::node;
use super::service::{NotifyService, ProviderKind};
use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure, short};
use crate::postgres::PostgresServer;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

const DATABASE: &str = "bench_backlog";

/// Lanes of e-mail, with the codes of the store.
pub(super) const CRITICAL: u8 = 0;
pub(super) const HIGH: u8 = 2;
pub(super) const NORMAL: u8 = 4;
pub(super) const LOW: u8 = 6;

/// Inserts notifications into the queue, as if they had been accepted the given number of seconds
/// ago.
pub(super) fn fill(
    postgres: &PostgresServer,
    database: &str,
    lane: u8,
    rows: u32,
    seconds_ago: u32,
) -> io::Result<()> {
    // An id is a UUIDv7 with the time of acceptance, as the service generates it.
    let sql = format!(
        "WITH made AS MATERIALIZED (
           SELECT (extract(epoch FROM now()) * 1000)::int8 - {seconds_ago} * 1000 + n / 4096 AS ms, n % 4096 AS counter
           FROM generate_series(0, {rows} - 1) AS n
         ), ids AS MATERIALIZED (
           SELECT ms, (ms << 12) + counter AS ord,
             (lpad(to_hex(ms), 12, '0') || '7' || lpad(to_hex(counter), 3, '0') || '8' ||
               substr(replace(gen_random_uuid()::text, '-', ''), 1, 15))::uuid AS id
           FROM made
         ), recorded AS (
           INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
           SELECT id, {lane}, 'service:bench', 'welcome', 1, 'en', '{{\"email\":\"ada@example.com\"}}', '{{\"name\":\"Ada\"}}', ms FROM ids
         )
         INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, {lane}, ord, 0, 0 FROM ids"
    );
    postgres.ask(database, &sql)?;
    postgres.ask(database, "VACUUM ANALYZE notify_queue")?;
    Ok(())
}

/// Creates the tables by starting a service once.
pub(super) fn prepare(
    bench: &BenchRun,
    postgres: &PostgresServer,
    origin: &OriginServer,
    name: &str,
) -> io::Result<String> {
    let database = postgres.database(name)?;
    drop(NotifyService::start(
        bench,
        origin,
        &database,
        ProviderKind::NULL,
    )?);
    Ok(database)
}

/// Measures the delivery of a backlog, compared with no-op jobs of the peers.
pub(super) fn drained(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let (rounds, rows) = bench.pick((2, 200_000), (5, 500_000));
    let mut taken: [Vec<f64>; 3] = Default::default();
    let mut cost = Vec::new();
    for round in 1..=rounds {
        progress(&format!("backlog: round {round} of {rounds}: Postern"));
        let (rate, cpu_us) = drain(bench, postgres, origin, rows)?;
        taken[0].push(rate);
        cost.push(cpu_us);
        for (at, (name, script)) in [
            ("graphile-worker", "graphile-worker.mjs"),
            ("pg-boss", "pg-boss.mjs"),
        ]
        .into_iter()
        .enumerate()
        {
            progress(&format!("backlog: round {round} of {rounds}: {name}"));
            let url = postgres.database("bench_jobs")?;
            taken[at + 1].push(node(bench, script, "run", &url, bench.pick(4, 10))?);
        }
    }
    progress("");
    let names = [
        "Postern: rendered, null provider, status and trail durable",
        "graphile-worker: no-ops, 24 at once, local queue 500, batched completion",
        "pg-boss: fetched and completed, batches of 500",
    ];
    let none = || "–".to_owned();
    let lines = names
        .iter()
        .zip(&taken)
        .zip([ranged(&cost), none(), none()]);
    let rows = lines
        .map(|((name, taken), cost)| vec![(*name).to_owned(), ranged(taken), cost])
        .collect();
    report.sheets.push(ReportTable {
        title: "A backlog worked off".to_owned(),
        columns: vec!["what", "per second", "CPU service and PostgreSQL, µs"],
        rows,
    });
    report.rounds["backlog"] =
        json!({"postern": taken[0], "graphileWorker": taken[1], "pgBoss": taken[2], "cpuUs": cost});
    let (ours, theirs) = (median(&taken[0]), median(&taken[1]));
    let what = "delivered per second to a null provider, rendered, status and events durable: over graphile-worker's no-ops";
    let figure = TargetFigure::number(what, Bound::AtLeast(1.5), ours / theirs, " ×");
    let note = format!(
        "{}/s against {}/s; {:.0} µs of CPU each",
        short(ours),
        short(theirs),
        median(&cost)
    );
    report.figures.push(figure.noting(&note));
    Ok(())
}

/// Delivers a backlog. Returns notifications per second, and CPU microseconds of service and
/// PostgreSQL for each.
fn drain(
    bench: &BenchRun,
    postgres: &PostgresServer,
    origin: &OriginServer,
    rows: u32,
) -> io::Result<(f64, f64)> {
    let database = prepare(bench, postgres, origin, DATABASE)?;
    fill(postgres, DATABASE, NORMAL, rows, 60)?;
    let server = postgres.cpu_ns()?;
    let service = NotifyService::start(bench, origin, &database, ProviderKind::NULL)?;
    let began = Instant::now();
    let (mut first, all) = (None, f64::from(rows));
    loop {
        let done = service.sent()?;
        let now = began.elapsed().as_secs_f64();
        // The first tenth is the warm-up.
        if first.is_none() && done >= all * 0.1 {
            first = Some((now, done));
        }
        if done >= all * 0.95
            && let Some((since, before)) = first
        {
            let cpu = service.process.cpu_ns()? + postgres.cpu_ns()?.saturating_sub(server);
            service.drained(postgres, DATABASE)?;
            return Ok(((done - before) / (now - since), cpu as f64 / 1e3 / done));
        }
        if now > 120.0 {
            return Err(io::Error::other(format!(
                "only {done} of {rows} were sent in two minutes"
            )));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
