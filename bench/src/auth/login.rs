use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::{PASSWORD, Service};
use crate::bench::Bench;
use crate::figure::{Bound, Figure};
use crate::http::Client;
use crate::process;
use crate::report::{Report, Sheet, median, progress};
use crate::statistics::mann_whitney;

/// Wrong passwords of one person before the pool slows it down.
const WRONG_EACH: u32 = 4;

fn body(email: &str, password: &str) -> String {
    format!("{{\"email\":\"{email}\",\"password\":\"{password}\"}}")
}

/// CPU of a password login beside that of the threads that hash, and beside what both processes take in the same
/// time when nobody signs in: the one that is the pool is a standalone, with a gateway and a queue of its own.
pub(super) fn overhead(bench: &Bench, service: &Service, report: &mut Report) -> io::Result<()> {
    let logins = bench.pick(20, 100);
    let email = "login@example.com";
    service.register(email)?;
    let mut client = Client::connect(service.address)?;
    let body = body(email, PASSWORD);
    client.ask("POST", "/auth/login", &[], &body)?.expect(200)?;
    let hashing = |name: &str| name.starts_with("argon2");
    let pool_id = service.standalone.id();
    let costs = || -> io::Result<(u64, u64, u64)> {
        Ok((
            service.process.cpu_ns()?,
            process::threads_cpu_ns(pool_id, |name| !hashing(name))?,
            process::threads_cpu_ns(pool_id, hashing)?,
        ))
    };
    let idle_s = bench.pick(3, 10);
    progress(&format!("login: {idle_s} s of nothing"));
    let before = costs()?;
    std::thread::sleep(Duration::from_secs(idle_s));
    let after = costs()?;
    let idle = |after: u64, before: u64| after.saturating_sub(before) as f64 / 1e6 / idle_s as f64;
    let (upstream_idle, pool_idle) = (idle(after.0, before.0), idle(after.1, before.1));
    let (before, began) = (costs()?, Instant::now());
    for login in 1..=logins {
        progress(&format!("login: {login} of {logins}"));
        client.ask("POST", "/auth/login", &[], &body)?.expect(200)?;
    }
    progress("");
    let after = costs()?;
    let each_s = began.elapsed().as_secs_f64() / f64::from(logins);
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / 1e6 / f64::from(logins);
    let upstream = each(after.0, before.0) - upstream_idle * each_s;
    let pool = each(after.1, before.1) - pool_idle * each_s;
    let hash = each(after.2, before.2);
    report.sheets.push(Sheet {
        title: format!("Password login, {logins} in a row"),
        columns: vec!["argon2id, ms of CPU", "rest of the pool, ms", "upstream, ms"],
        rows: vec![vec![format!("{hash:.1}"), format!("{pool:.2}"), format!("{upstream:.2}")]],
    });
    let what = "password login: CPU of everything but argon2id";
    let figure = Figure::number(what, Bound::AtMost(1.0), upstream + pool, " ms");
    report.figures.push(figure.noting(&format!(
        "argon2id {hash:.1} ms; idle, {upstream_idle:.1} and {pool_idle:.1} ms a second are taken off"
    )));
    report.rounds["login"] = json!({"upstreamMs": upstream, "poolMs": pool, "argon2Ms": hash});
    Ok(())
}

/// Whether the time of a refusal tells if the person is known.
pub(super) fn known_and_unknown(bench: &Bench, service: &Service, report: &mut Report) -> io::Result<()> {
    let pairs: u32 = bench.pick(60, 500);
    let people = pairs.div_ceil(WRONG_EACH);
    for person in 0..people {
        progress(&format!("timing: {person} of {people} people are registered"));
        service.register(&format!("known-{person}@example.com"))?;
    }
    let mut client = Client::connect(service.address)?;
    let mut ask = |email: &str| -> io::Result<f64> {
        let began = Instant::now();
        client.ask("POST", "/auth/login", &[], &body(email, "Wrong horse battery 9"))?.expect(401)?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        progress(&format!("timing: {pair} of {pairs} pairs"));
        let (here, nowhere) =
            (format!("known-{}@example.com", pair % people), format!("nobody-{pair}@example.com"));
        // Each goes first as often as the other.
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
    let what = format!("timing of known and unknown e-mail at login, {pairs} pairs: Mann-Whitney p");
    let figure = Figure::number(&what, Bound::AtLeast(0.05), p, "");
    let medians = format!("medians {:.1} ms and {:.1} ms", median(&known), median(&unknown));
    report.figures.push(figure.noting(&medians));
    report.rounds["timing"] = json!({"knownMs": known, "unknownMs": unknown});
    Ok(())
}
