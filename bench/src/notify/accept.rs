use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use super::NotifyRun;
use super::peers::SingleAddRates;
use super::service::{
    LOAD_CONNECTIONS, NOTIFICATIONS_PATH, NotifyService, ProviderKind, all_answered,
};
use crate::bench::BenchRun;
use crate::figure::{Bound, TargetFigure, short};
use crate::load::LoadResult;
use crate::peers::PosternSetup;
use crate::postgres::PostgresServer;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

/// The route of the proxy to the service.
const ROUTE: &str = "[[route]]\npath = \"/notifications\"\nmethods = [\"POST\"]\nupstream = \"origin\"\n\
                     policy = { users = \"any\", services = \"any\" }\n";

/// The result of one round of acceptance.
#[derive(Clone, Copy, Debug)]
struct AcceptRound {
    /// Result of the warm-up, which counts only for the number of rows.
    warm_up: LoadResult,
    seen: LoadResult,
    service_us: f64,
    postgres_us: f64,
    delivered: f64,
}

/// Loads the service directly or through a proxy.
fn round(
    bench: &BenchRun,
    postgres: &PostgresServer,
    service: &NotifyService,
    address: SocketAddr,
    seconds: u32,
) -> io::Result<AcceptRound> {
    let load = service.load(seconds);
    let warm_up = load
        .lasting(1)
        .run(bench.folder(), address, NOTIFICATIONS_PATH)?;
    let (cpu, server) = (service.process.cpu_ns()?, postgres.cpu_ns()?);
    let (sent, began) = (service.sent()?, Instant::now());
    let seen = load.run(bench.folder(), address, NOTIFICATIONS_PATH)?;
    let delivered = (service.sent()? - sent) / began.elapsed().as_secs_f64();
    let requests = seen.requests as f64;
    Ok(AcceptRound {
        warm_up,
        seen,
        service_us: service.process.cpu_ns()?.saturating_sub(cpu) as f64 / 1e3 / requests,
        postgres_us: postgres.cpu_ns()?.saturating_sub(server) as f64 / 1e3 / requests,
        delivered,
    })
}

fn of(rounds: &[AcceptRound], value: impl Fn(&AcceptRound) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// Returns the warm-up and the measured load of each round.
fn loads(rounds: &[AcceptRound]) -> impl Iterator<Item = LoadResult> + Clone {
    rounds.iter().flat_map(|round| [round.warm_up, round.seen])
}

fn row(name: &str, rounds: &[AcceptRound]) -> Vec<String> {
    let failed: u64 = loads(rounds).map(|seen| seen.failed).sum();
    vec![
        name.to_owned(),
        ranged(&of(rounds, |round| round.seen.per_second)),
        ranged(&of(rounds, |round| round.delivered)),
        ranged(&of(rounds, |round| round.service_us)),
        ranged(&of(rounds, |round| round.postgres_us)),
        ranged(&of(rounds, |round| round.seen.p99_us / 1e3)),
        failed.to_string(),
    ]
}

fn sheet(title: &str, rows: Vec<Vec<String>>) -> ReportTable {
    let columns = vec![
        "what",
        "accepted/s",
        "delivered/s",
        "CPU service, µs",
        "CPU PostgreSQL, µs",
        "p99, ms",
        "failed",
    ];
    ReportTable {
        title: title.to_owned(),
        columns,
        rows,
    }
}

fn data(rounds: &[AcceptRound]) -> Value {
    let round = |round: &AcceptRound| {
        let AcceptRound {
            seen,
            service_us,
            postgres_us,
            delivered,
            ..
        } = round;
        json!({
            "perSecond": seen.per_second, "p99Ms": seen.p99_us / 1e3, "failed": seen.failed,
            "serviceUs": service_us, "postgresUs": postgres_us, "delivered": delivered,
        })
    };
    rounds.iter().map(round).collect()
}

/// Measures acceptance only: the provider never answers, so that accepted notifications wait.
pub(super) fn durable(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        peers,
    } = *run;
    let database = postgres.database("bench_accept")?;
    let service =
        NotifyService::start(bench, origin, &database, ProviderKind::Never { permits: 1 })?;
    let (mut rounds, mut singles) = (Vec::new(), SingleAddRates::default());
    let (most, seconds) = bench.pick((3, 3), (5, 8));
    for at in 1..=most {
        progress(&format!("accept: round {at} of {most}"));
        rounds.push(round(bench, postgres, &service, service.address, seconds)?);
        peers.rows(seconds, &mut singles)?;
        peers.adds(bench, seconds, &mut singles)?;
    }
    progress("");
    report.sheets.push(sheet(
        "Accept",
        vec![row(
            &format!("POST, {LOAD_CONNECTIONS} connections"),
            &rounds,
        )],
    ));
    report
        .sheets
        .push(singles.sheet("Peers: single adds, in the same rounds"));
    report.rounds["accept"] = json!({
        "postern": data(&rounds), "pgbench": singles.rows, "graphileWorker": singles.graphile, "pgBoss": singles.boss,
    });
    stored(postgres, "bench_accept", loads(&rounds))?;
    judge(&rounds, &singles, report);
    Ok(())
}

fn judge(rounds: &[AcceptRound], singles: &SingleAddRates, report: &mut BenchReport) {
    let what = "POST /notifications, token verified, durable 201";
    let middle = |value: fn(&AcceptRound) -> f64| median(&of(rounds, value));
    let rate = middle(|round| round.seen.per_second);
    let rows = median(&singles.rows);
    let over = format!("{what}: over pgbench's single rows");
    let figure = TargetFigure::number(&over, Bound::AtLeast(2.0), rate / rows, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s against {}/s", short(rate), short(rows))));
    let service = format!("{what}: CPU in the service");
    let service_us = middle(|round| round.service_us);
    report.figures.push(TargetFigure::number(
        &service,
        Bound::AtMost(18.0),
        service_us,
        " µs",
    ));
    let server = format!("{what}: CPU in PostgreSQL");
    let postgres_us = middle(|round| round.postgres_us);
    report.figures.push(TargetFigure::number(
        &server,
        Bound::AtMost(10.0),
        postgres_us,
        " µs",
    ));
    let (graphile, boss) = (median(&singles.graphile), median(&singles.boss));
    let over = format!("{what}: over the single adds of graphile-worker and pg-boss");
    let figure = TargetFigure::number(&over, Bound::AtLeast(10.0), rate / graphile.max(boss), " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s and {}/s", short(graphile), short(boss))));
}

/// Checks that the number of stored rows matches the number of responses, except for responses in
/// flight at the end of a load.
fn stored(
    postgres: &PostgresServer,
    database: &str,
    loads: impl Iterator<Item = LoadResult> + Clone,
) -> io::Result<()> {
    all_answered(loads.clone())?;
    let under_way = loads.clone().count() as f64 * f64::from(LOAD_CONNECTIONS);
    let answered = loads.map(|seen| seen.requests as f64).sum::<f64>();
    let rows = postgres.number(database, "SELECT count(*) FROM notify_record")?;
    if rows < answered || rows > answered + under_way {
        return Err(io::Error::other(format!(
            "{answered} were answered and {rows} are stored"
        )));
    }
    Ok(())
}

/// Measures acceptance and delivery concurrently, without and with the proxy. Each round begins
/// with an empty queue.
pub(super) fn at_once(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    const DATABASE: &str = "bench_both";
    let NotifyRun {
        bench,
        postgres,
        origin,
        peers,
    } = *run;
    let database = postgres.database(DATABASE)?;
    let service = NotifyService::start(bench, origin, &database, ProviderKind::NULL)?;
    let how = PosternSetup {
        upstream: Some(service.address),
        more: ROUTE,
        ..PosternSetup::default()
    };
    let gateway = how.start(bench, origin)?;
    let (mut direct, mut proxied, mut singles) =
        (Vec::new(), Vec::new(), SingleAddRates::default());
    let (most, seconds) = bench.pick((3, 3), (5, 8));
    for at in 1..=most {
        progress(&format!("accept and deliver at once: round {at} of {most}"));
        direct.push(round(bench, postgres, &service, service.address, seconds)?);
        service.drained(postgres, DATABASE)?;
        proxied.push(round(bench, postgres, &service, gateway.address, seconds)?);
        service.drained(postgres, DATABASE)?;
        peers.rows(seconds, &mut singles)?;
    }
    progress("");
    let rows = vec![row("direct", &direct), row("through the proxy", &proxied)];
    report
        .sheets
        .push(sheet("Accept and deliver at once", rows));
    report
        .sheets
        .push(singles.sheet("Peers: single rows, in the same rounds as both at once"));
    report.rounds["both"] =
        json!({"direct": data(&direct), "proxied": data(&proxied), "pgbench": singles.rows});
    stored(postgres, DATABASE, loads(&direct).chain(loads(&proxied)))?;
    // If notifications are accepted faster than delivered, they accumulate; the slower rate is the
    // capacity.
    let rate = |rounds: &[AcceptRound]| {
        median(&of(rounds, |round| {
            round.seen.per_second.min(round.delivered)
        }))
    };
    let (alone, behind, rows) = (rate(&direct), rate(&proxied), median(&singles.rows));
    let over = "accept and deliver at once over HTTP: over pgbench's single rows";
    let figure = TargetFigure::number(over, Bound::AtLeast(1.2), alone / rows, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s against {}/s", short(alone), short(rows))));
    let through = "the same through the proxy, on the same two cores: over the figure without it";
    let figure = TargetFigure::number(through, Bound::AtLeast(0.6), behind / alone, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s", short(behind))));
    Ok(())
}
