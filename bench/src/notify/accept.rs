use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use super::Run;
use super::peers::Singles;
use super::service::{CONNECTIONS, Carrier, PATH, Service, all_answered};
use crate::bench::Bench;
use crate::figure::{Bound, Figure, short};
use crate::load::Seen;
use crate::peers::Postern;
use crate::postgres::Postgres;
use crate::report::{Report, Sheet, median, progress, ranged};

/// The route through which the proxy reaches the service.
const ROUTE: &str = "[[route]]\npath = \"/notifications\"\nmethods = [\"POST\"]\nupstream = \"origin\"\n\
                     policy = { users = \"any\", services = \"any\" }\n";

/// What one round of acceptance cost.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The second before, which counts only as rows.
    warm_up: Seen,
    seen: Seen,
    service_us: f64,
    postgres_us: f64,
    delivered: f64,
}

/// Loads the service at an address of its own or of a proxy in front of it.
fn round(
    bench: &Bench,
    postgres: &Postgres,
    service: &Service,
    address: SocketAddr,
    seconds: u32,
) -> io::Result<Round> {
    let load = service.load(seconds);
    let warm_up = load.lasting(1).run(bench.folder(), address, PATH)?;
    let (cpu, server) = (service.process.cpu_ns()?, postgres.cpu_ns()?);
    let (sent, began) = (service.sent()?, Instant::now());
    let seen = load.run(bench.folder(), address, PATH)?;
    let delivered = (service.sent()? - sent) / began.elapsed().as_secs_f64();
    let requests = seen.requests as f64;
    Ok(Round {
        warm_up,
        seen,
        service_us: service.process.cpu_ns()?.saturating_sub(cpu) as f64 / 1e3 / requests,
        postgres_us: postgres.cpu_ns()?.saturating_sub(server) as f64 / 1e3 / requests,
        delivered,
    })
}

fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// Both loads of each round.
fn loads(rounds: &[Round]) -> impl Iterator<Item = Seen> + Clone {
    rounds.iter().flat_map(|round| [round.warm_up, round.seen])
}

fn row(name: &str, rounds: &[Round]) -> Vec<String> {
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

fn sheet(title: &str, rows: Vec<Vec<String>>) -> Sheet {
    let columns = vec![
        "what",
        "accepted/s",
        "delivered/s",
        "CPU service, µs",
        "CPU PostgreSQL, µs",
        "p99, ms",
        "failed",
    ];
    Sheet {
        title: title.to_owned(),
        columns,
        rows,
    }
}

fn data(rounds: &[Round]) -> Value {
    let round = |round: &Round| {
        let Round {
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

/// Acceptance alone: what is accepted waits, because its provider never answers.
pub(super) fn durable(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run {
        bench,
        postgres,
        origin,
        peers,
    } = *run;
    let database = postgres.database("bench_accept")?;
    let service = Service::start(bench, origin, &database, Carrier::Never { permits: 1 })?;
    let (mut rounds, mut singles) = (Vec::new(), Singles::default());
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
        vec![row(&format!("POST, {CONNECTIONS} connections"), &rounds)],
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

fn judge(rounds: &[Round], singles: &Singles, report: &mut Report) {
    let what = "POST /notifications, token verified, durable 201";
    let middle = |value: fn(&Round) -> f64| median(&of(rounds, value));
    let rate = middle(|round| round.seen.per_second);
    let rows = median(&singles.rows);
    let over = format!("{what}: over pgbench's single rows");
    let figure = Figure::number(&over, Bound::AtLeast(2.0), rate / rows, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s against {}/s", short(rate), short(rows))));
    let service = format!("{what}: CPU in the service");
    let service_us = middle(|round| round.service_us);
    report.figures.push(Figure::number(
        &service,
        Bound::AtMost(18.0),
        service_us,
        " µs",
    ));
    let server = format!("{what}: CPU in PostgreSQL");
    let postgres_us = middle(|round| round.postgres_us);
    report.figures.push(Figure::number(
        &server,
        Bound::AtMost(10.0),
        postgres_us,
        " µs",
    ));
    let (graphile, boss) = (median(&singles.graphile), median(&singles.boss));
    let over = format!("{what}: over the single adds of graphile-worker and pg-boss");
    let figure = Figure::number(&over, Bound::AtLeast(10.0), rate / graphile.max(boss), " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s and {}/s", short(graphile), short(boss))));
}

/// Every answer is a row, and there are no more rows than that, but for those whose answers were
/// under way when a load ended.
fn stored(
    postgres: &Postgres,
    database: &str,
    loads: impl Iterator<Item = Seen> + Clone,
) -> io::Result<()> {
    all_answered(loads.clone())?;
    let under_way = loads.clone().count() as f64 * f64::from(CONNECTIONS);
    let answered = loads.map(|seen| seen.requests as f64).sum::<f64>();
    let rows = postgres.number(database, "SELECT count(*) FROM notify_record")?;
    if rows < answered || rows > answered + under_way {
        return Err(io::Error::other(format!(
            "{answered} were answered and {rows} are stored"
        )));
    }
    Ok(())
}

/// Acceptance and delivery at once, without and with the proxy in front. Each begins with an empty
/// queue.
pub(super) fn at_once(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    const DATABASE: &str = "bench_both";
    let Run {
        bench,
        postgres,
        origin,
        peers,
    } = *run;
    let database = postgres.database(DATABASE)?;
    let service = Service::start(bench, origin, &database, Carrier::NULL)?;
    let how = Postern {
        upstream: Some(service.address),
        more: ROUTE,
        ..Postern::default()
    };
    let gateway = how.start(bench, origin)?;
    let (mut direct, mut proxied, mut singles) = (Vec::new(), Vec::new(), Singles::default());
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
    // What is accepted faster than it is delivered piles up: the slower of the two is what it can
    // do.
    let rate = |rounds: &[Round]| {
        median(&of(rounds, |round| {
            round.seen.per_second.min(round.delivered)
        }))
    };
    let (alone, behind, rows) = (rate(&direct), rate(&proxied), median(&singles.rows));
    let over = "accept and deliver at once over HTTP: over pgbench's single rows";
    let figure = Figure::number(over, Bound::AtLeast(1.2), alone / rows, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s against {}/s", short(alone), short(rows))));
    let through = "the same through the proxy, on the same two cores: over the figure without it";
    let figure = Figure::number(through, Bound::AtLeast(0.6), behind / alone, " ×");
    report
        .figures
        .push(figure.noting(&format!("{}/s", short(behind))));
    Ok(())
}
