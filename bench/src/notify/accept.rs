use std::io;
use std::net::SocketAddr;

use serde_json::json;

use super::Run;
use super::service::{CONNECTIONS, Carrier, PATH, Service};
use crate::bench::Bench;
use crate::figure::{Bound, Figure, short};
use crate::load::Seen;
use crate::peers::Postern;
use crate::postgres::Postgres;
use crate::report::{Report, Sheet, median, progress};

/// The route through which the proxy reaches the service.
const ROUTE: &str = "[[route]]\npath = \"/notifications\"\nmethods = [\"POST\"]\nupstream = \"origin\"\n\
                     policy = { users = \"any\", services = \"any\" }\n";

/// What one round of acceptance cost.
#[derive(Clone, Copy, Debug)]
struct Round {
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
    load.lasting(1).run(bench.folder(), address, PATH)?;
    let (cpu, server, attempts) = (service.process.cpu_ns()?, postgres.cpu_ns()?, service.attempts()?);
    let seen = load.run(bench.folder(), address, PATH)?;
    let requests = seen.requests as f64;
    Ok(Round {
        seen,
        service_us: (service.process.cpu_ns()? - cpu) as f64 / 1e3 / requests,
        postgres_us: (postgres.cpu_ns()?.saturating_sub(server)) as f64 / 1e3 / requests,
        delivered: (service.attempts()? - attempts) / f64::from(seconds),
    })
}

fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> f64 {
    median(&rounds.iter().map(value).collect::<Vec<_>>())
}

fn row(name: &str, rounds: &[Round]) -> Vec<String> {
    let failed: u64 = rounds.iter().map(|round| round.seen.failed).sum();
    vec![
        name.to_owned(),
        short(of(rounds, |round| round.seen.per_second)),
        short(of(rounds, |round| round.delivered)),
        format!("{:.1}", of(rounds, |round| round.service_us)),
        format!("{:.1}", of(rounds, |round| round.postgres_us)),
        format!("{:.1}", of(rounds, |round| round.seen.p99_us / 1e3)),
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
    Sheet { title: title.to_owned(), columns, rows }
}

/// Acceptance alone: what is accepted waits, because its provider never answers.
pub(super) fn durable(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, postgres, origin, peers } = *run;
    let database = postgres.database("bench_accept")?;
    let service = Service::start(bench, origin, &database, Carrier::Never { permits: 1 })?;
    let mut rounds = Vec::new();
    let most = bench.pick(3, 5);
    for at in 1..=most {
        progress(&format!("accept: round {at} of {most}"));
        rounds.push(round(bench, postgres, &service, service.address, bench.pick(3, 8))?);
    }
    progress("");
    stored(postgres, "bench_accept", &service)?;
    report.sheets.push(sheet("Accept", vec![row(&format!("POST, {CONNECTIONS} connections"), &rounds)]));
    let rate = of(&rounds, |round| round.seen.per_second);
    let what = "POST /notifications, token verified, durable 201";
    let figures = &mut report.figures;
    let against = format!("{}/s against {}/s", short(rate), short(peers.rows));
    figures.push(
        Figure::number(
            &format!("{what}: over pgbench's single rows"),
            Bound::AtLeast(2.0),
            rate / peers.rows,
            " ×",
        )
        .noting(&against),
    );
    let (service_us, postgres_us) =
        (of(&rounds, |round| round.service_us), of(&rounds, |round| round.postgres_us));
    figures.push(Figure::number(
        &format!("{what}: CPU in the service"),
        Bound::AtMost(18.0),
        service_us,
        " µs",
    ));
    figures.push(Figure::number(
        &format!("{what}: CPU in PostgreSQL"),
        Bound::AtMost(10.0),
        postgres_us,
        " µs",
    ));
    let slower = peers.graphile_adds.max(peers.boss_adds);
    let what = format!("{what}: over the single adds of graphile-worker and pg-boss");
    figures.push(Figure::number(&what, Bound::AtLeast(10.0), rate / slower, " ×").noting(&format!(
        "{}/s and {}/s",
        short(peers.graphile_adds),
        short(peers.boss_adds)
    )));
    report.rounds["accept"] = rounds.iter().map(|round| json!({"perSecond": round.seen.per_second, "serviceUs": round.service_us, "postgresUs": round.postgres_us})).collect();
    Ok(())
}

/// Every 201 is a row: a fast wrong answer counts as failed.
fn stored(postgres: &Postgres, database: &str, service: &Service) -> io::Result<()> {
    let rows = postgres.number(database, "SELECT count(*) FROM notify_record")?;
    let accepted = service.metric("postern_notify_accepted_total")?;
    if (rows - accepted).abs() > 0.5 {
        return Err(io::Error::other(format!("{accepted} were accepted and {rows} are stored")));
    }
    Ok(())
}

/// Acceptance and delivery at once, without and with the proxy in front.
pub(super) fn at_once(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, postgres, origin, peers } = *run;
    let database = postgres.database("bench_both")?;
    let service = Service::start(bench, origin, &database, Carrier::NULL)?;
    let how = Postern { upstream: Some(service.address), more: ROUTE, ..Postern::default() };
    let gateway = how.start(bench, origin)?;
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    let most = bench.pick(3, 5);
    for at in 1..=most {
        progress(&format!("accept and deliver at once: round {at} of {most}"));
        direct.push(round(bench, postgres, &service, service.address, bench.pick(3, 8))?);
        proxied.push(round(bench, postgres, &service, gateway.address, bench.pick(3, 8))?);
    }
    progress("");
    let rows = vec![row("direct", &direct), row("through the proxy", &proxied)];
    report.sheets.push(sheet("Accept and deliver at once", rows));
    // What is accepted faster than it is delivered piles up: the slower of the two is what it can do.
    let rate = |rounds: &[Round]| of(rounds, |round| round.seen.per_second.min(round.delivered));
    let (alone, behind) = (rate(&direct), rate(&proxied));
    let what = "accept and deliver at once over HTTP";
    let over = format!("{what}: over pgbench's single rows");
    let figure = Figure::number(&over, Bound::AtLeast(1.2), alone / peers.rows, " ×");
    report.figures.push(figure.noting(&format!("{}/s against {}/s", short(alone), short(peers.rows))));
    let through = "the same through the proxy, on the same two cores: over the figure without it";
    let figure = Figure::number(through, Bound::AtLeast(0.6), behind / alone, " ×");
    report.figures.push(figure.noting(&format!("{}/s", short(behind))));
    Ok(())
}
