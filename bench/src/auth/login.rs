use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::{AuthService, PASSWORD};
use crate::bench::BenchRun;
use crate::figure::{Bound, TargetFigure};
use crate::http::HttpClient;
use crate::process;
use crate::report::{BenchReport, ReportTable, median, progress, ranged, spread};
use crate::statistics::mann_whitney;

/// Wrong passwords per user, below the limit at which the pool delays attempts.
const WRONG_EACH: u32 = 4;

fn body(email: &str, password: &str) -> String {
    format!("{{\"email\":\"{email}\",\"password\":\"{password}\"}}")
}

/// CPU time in milliseconds of the upstream, the pool's hashing threads, and its other threads.
#[derive(Clone, Copy)]
struct CpuCost {
    upstream: f64,
    hash: f64,
    pool: f64,
}

/// Returns the CPU time used so far.
fn spent(service: &AuthService) -> io::Result<CpuCost> {
    let hashing = |name: &str| name.starts_with("argon2");
    let pool = service.standalone.id();
    Ok(CpuCost {
        upstream: service.process.cpu_ns()? as f64 / 1e6,
        hash: process::threads_cpu_ns(pool, hashing)? as f64 / 1e6,
        pool: process::threads_cpu_ns(pool, |name| !hashing(name))? as f64 / 1e6,
    })
}

/// Returns the cost per login, without the CPU that the same time costs when idle.
fn each(
    before: CpuCost,
    after: CpuCost,
    idle_a_second: CpuCost,
    took: Duration,
    count: f64,
) -> CpuCost {
    let of =
        |before: f64, after: f64, idle: f64| (after - before - idle * took.as_secs_f64()) / count;
    CpuCost {
        upstream: of(before.upstream, after.upstream, idle_a_second.upstream),
        hash: of(before.hash, after.hash, 0.0),
        pool: of(before.pool, after.pool, idle_a_second.pool),
    }
}

/// Measures the CPU of a password login in addition to the hashing threads. The idle consumption of
/// both processes is subtracted, because the pool is part of a standalone process that also
/// contains a gateway and a queue. Measured with one login at a time, and with four, so that every
/// core hashes.
pub(super) fn overhead(
    bench: &BenchRun,
    service: &AuthService,
    report: &mut BenchReport,
) -> io::Result<()> {
    let email = "login@example.com";
    service.register(email)?;
    let body = body(email, PASSWORD);
    let quiet = Duration::from_secs(bench.pick(3, 30));
    progress(&format!("login: {} s of nothing", quiet.as_secs()));
    let before = spent(service)?;
    std::thread::sleep(quiet);
    let nothing = CpuCost {
        upstream: 0.0,
        hash: 0.0,
        pool: 0.0,
    };
    let idle = each(before, spent(service)?, nothing, quiet, quiet.as_secs_f64());
    let (mut rows, mut one_at_a_time) = (Vec::new(), Vec::new());
    for at_once in [1, 4] {
        progress(&format!("login: {at_once} at a time"));
        let costs = sign_ins(bench, service, &body, at_once, idle)?;
        let column = |of: fn(&CpuCost) -> f64| ranged(&costs.iter().map(of).collect::<Vec<_>>());
        rows.push(vec![
            at_once.to_string(),
            column(|cost| cost.hash),
            column(|cost| cost.pool),
            column(|cost| cost.upstream),
        ]);
        report.rounds[format!("login{at_once}")] = costs
            .iter()
            .map(|cost| json!({"upstreamMs": cost.upstream, "poolMs": cost.pool, "argon2Ms": cost.hash}))
            .collect();
        if at_once == 1 {
            one_at_a_time = costs;
        }
    }
    progress("");
    report.sheets.push(ReportTable {
        title: "Password login".to_owned(),
        columns: vec![
            "at a time",
            "argon2id, ms of CPU: median (min to max)",
            "rest of the pool, ms",
            "upstream, ms",
        ],
        rows,
    });
    let rest: Vec<f64> = one_at_a_time
        .iter()
        .map(|cost| cost.upstream + cost.pool)
        .collect();
    let what = "password login: CPU of everything but argon2id";
    let figure = TargetFigure::number(what, Bound::AtMost(1.0), median(&rest), " ms");
    let (least, _, most) = spread(&rest);
    report.figures.push(figure.noting(&format!(
        "{least:.2} to {most:.2}; idle, {:.1} and {:.1} ms a second are taken off",
        idle.upstream, idle.pool
    )));
    Ok(())
}

/// Measures the cost of a login in each round, after a warm-up round.
fn sign_ins(
    bench: &BenchRun,
    service: &AuthService,
    body: &str,
    at_once: u32,
    idle: CpuCost,
) -> io::Result<Vec<CpuCost>> {
    let logins: u32 = bench.pick(20, 100);
    let person = || {
        let mut client = HttpClient::connect(service.address)?;
        let mut one = || {
            client
                .ask("POST", "/auth/login", &[], body)?
                .expect(200)
                .map(drop)
        };
        (0..logins / at_once).try_for_each(|_| one())
    };
    let mut costs = Vec::new();
    for round in 0..=bench.pick(2, 5) {
        let (before, began) = (spent(service)?, Instant::now());
        std::thread::scope(|scope| {
            let people: Vec<_> = (0..at_once).map(|_| scope.spawn(person)).collect();
            people
                .into_iter()
                .try_for_each(|person| person.join().expect("no panic"))
        })?;
        if round > 0 {
            costs.push(each(
                before,
                spent(service)?,
                idle,
                began.elapsed(),
                f64::from(logins),
            ));
        }
    }
    Ok(costs)
}

/// Measures whether the time of a rejected login reveals if the user exists.
pub(super) fn known_and_unknown(
    bench: &BenchRun,
    service: &AuthService,
    report: &mut BenchReport,
) -> io::Result<()> {
    let pairs: u32 = bench.pick(60, 500);
    let people = pairs.div_ceil(WRONG_EACH);
    for person in 0..people {
        progress(&format!(
            "timing: {person} of {people} people are registered"
        ));
        service.register(&format!("known-{person}@example.com"))?;
    }
    let mut client = HttpClient::connect(service.address)?;
    let mut ask = |email: &str| -> io::Result<f64> {
        let began = Instant::now();
        client
            .ask(
                "POST",
                "/auth/login",
                &[],
                &body(email, "Wrong horse battery 9"),
            )?
            .expect(401)?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        progress(&format!("timing: {pair} of {pairs} pairs"));
        let (here, nowhere) = (
            format!("known-{}@example.com", pair % people),
            format!("nobody-{pair}@example.com"),
        );
        // Each of the two goes first equally often.
        if pair % 2 == 0 {
            known.push(ask(&here)?);
            unknown.push(ask(&nowhere)?);
        } else {
            unknown.push(ask(&nowhere)?);
            known.push(ask(&here)?);
        }
    }
    progress("");
    let p = mann_whitney(&known, &unknown);
    let what =
        format!("timing of known and unknown e-mail at login, {pairs} pairs: Mann-Whitney p");
    let figure = TargetFigure::number(&what, Bound::AtLeast(0.05), p, "");
    let medians = format!(
        "medians {:.1} ms and {:.1} ms",
        median(&known),
        median(&unknown)
    );
    report.figures.push(figure.noting(&medians));
    report.rounds["timing"] = json!({"knownMs": known, "unknownMs": unknown});
    Ok(())
}
