use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Run;
use super::backlog::{NORMAL, fill};
use super::service::{BODY, Carrier, PATH, Service};
use crate::bench::Bench;
use crate::figure::{Bound, Figure, short};
use crate::postgres::Postgres;
use crate::process::{Process, signal};
use crate::report::{Report, median, progress};

/// What a killed worker held, taken over by another one.
pub(super) fn after_a_kill(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, postgres, origin, .. } = *run;
    const HELD: u32 = 64;
    progress("recovery: a worker is killed");
    let database = postgres.database("bench_recovery")?;
    let victim = Service::start(bench, origin, &database, Carrier::Never { permits: HELD })?;
    for _ in 0..HELD {
        victim.post(BODY)?;
    }
    let heir = Service::start(bench, origin, &database, Carrier::NULL)?;
    let killed =
        postgres.number("bench_recovery", "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8")?;
    signal("-KILL", victim.process.id());
    let began = Instant::now();
    let sent = "SELECT count(*) FROM notify_result WHERE kind = 2 AND began_at > 0";
    let expected = f64::from(HELD);
    while postgres.number("bench_recovery", sent)? < expected {
        if began.elapsed() > Duration::from_secs(60) {
            break;
        }
        thread::sleep(Duration::from_millis(250));
    }
    progress("");
    let p99 = format!(
        "SELECT coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY at - {killed}), -1) FROM notify_result
         WHERE kind = 2 AND attempt > 1"
    );
    let seconds = postgres.number("bench_recovery", &p99)? / 1e3;
    let count = postgres
        .number("bench_recovery", "SELECT count(*) FROM notify_result WHERE kind = 2 AND attempt > 1")?;
    let what = "recovery of what a SIGKILLed worker held: p99";
    let figure =
        Figure::number(what, Bound::AtMost(15.0), if count > 0.0 { seconds } else { f64::NAN }, " s");
    report.figures.push(figure.noting(&format!("{} of {HELD} taken over", short(count))));
    drop(heir);
    Ok(())
}

/// A session that is idle in a transaction holds back the clean-up of dead rows: what that costs, and whether a
/// restart finds its place again. Only the database of the session is held back, so that another one beside it, with a
/// service of its own and the same load in turn, is what it would be without.
pub(super) fn held_session(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, postgres, origin, .. } = *run;
    let minutes = bench.pick(0.75, 30.0);
    let url = postgres.database("bench_held")?;
    let beside = Service::start(bench, origin, &postgres.database("bench_beside")?, Carrier::NULL)?;
    let service = Service::start(bench, origin, &url, Carrier::NULL)?;
    let holder = hold(postgres)?;
    let ratios = side_by_side(run, &service, &beside, Duration::from_secs_f64(minutes * 60.0))?;
    drop((service, beside));
    // What another replica accepts between the stop and the start.
    fill(postgres, "bench_held", NORMAL, 1_000, 0)?;
    let ended = "SELECT count(*) FROM notify_result";
    let (before, restart) = (postgres.number("bench_held", ended)?, Instant::now());
    let service = Service::start(bench, origin, &url, Carrier::NULL)?;
    let ready = restart.elapsed();
    while postgres.number("bench_held", ended)? < before + 100.0 && restart.elapsed().as_secs() < 60 {
        thread::sleep(Duration::from_millis(10));
    }
    progress("");
    let claimed = restart.elapsed().saturating_sub(ready).as_secs_f64();
    drop((service, holder));
    let what = format!("idle-in-transaction session held {minutes} min: ");
    let what = |rest: &str| format!("{what}{rest}");
    let last = median(&ratios[ratios.len().saturating_sub(5)..]);
    let figure =
        Figure::number(&what("delivered per CPU second over one without"), Bound::AtLeast(0.9), last, " ×");
    report.figures.push(figure.noting("median of the last five turns; the bound is for 30 min"));
    report.figures.push(Figure::number(
        &what("ready to first claims after a restart"),
        Bound::AtMost(1.0),
        claimed,
        " s",
    ));
    report.rounds["held"] = json!(ratios);
    Ok(())
}

/// What is delivered for a CPU second with the held session over what is delivered without, turn by turn: one a minute,
/// so that half an hour of them fits on a disk.
fn side_by_side(run: &Run<'_>, service: &Service, beside: &Service, long: Duration) -> io::Result<Vec<f64>> {
    const WINDOW_S: u32 = 5;
    let began = Instant::now();
    let mut ratios = Vec::new();
    while began.elapsed() < long {
        progress(&format!("held session: {} of {} s", began.elapsed().as_secs(), long.as_secs()));
        let turn = Instant::now();
        let held = delivered_per_cpu_second(run.bench, run.postgres, service, WINDOW_S)?;
        ratios.push(held / delivered_per_cpu_second(run.bench, run.postgres, beside, WINDOW_S)?);
        if !run.bench.quick {
            thread::sleep(Duration::from_secs(60).saturating_sub(turn.elapsed()));
        }
    }
    Ok(ratios)
}

/// A session that looks at the queue once and then sits there.
fn hold(postgres: &Postgres) -> io::Result<Process> {
    let sql =
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM notify_worker; SELECT pg_sleep(7200)";
    let mut psql = Command::new("psql");
    Process::spawn("psql", psql.args([&postgres.url("bench_held"), "-XAtq", "-c", sql]))
}

fn delivered_per_cpu_second(
    bench: &Bench,
    postgres: &Postgres,
    service: &Service,
    seconds: u32,
) -> io::Result<f64> {
    let (cpu, attempts) = (service.process.cpu_ns()? + postgres.cpu_ns()?, service.attempts()?);
    service.load(seconds).run(bench.folder(), service.address, PATH)?;
    let spent = (service.process.cpu_ns()? + postgres.cpu_ns()?).saturating_sub(cpu) as f64 / 1e9;
    Ok((service.attempts()? - attempts) / spent)
}
