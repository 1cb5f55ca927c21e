use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::NotifyRun;
use super::backlog::{NORMAL, fill};
use super::service::{NOTIFICATIONS_PATH, NotifyService, ProviderKind, REQUEST_BODY, all_answered};
use crate::figure::{Bound, TargetFigure, short};
use crate::postgres::PostgresServer;
use crate::process::signal;
use crate::report::{BenchReport, ReportTable, progress, ranged};

/// Measures the takeover of a killed worker's notifications by another worker.
pub(super) fn after_a_kill(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    const HELD: u32 = 64;
    progress("recovery: a worker is killed");
    let database = postgres.database("bench_recovery")?;
    let victim = NotifyService::start(
        bench,
        origin,
        &database,
        ProviderKind::Never { permits: HELD },
    )?;
    for _ in 0..HELD {
        victim.post(REQUEST_BODY)?;
    }
    let replacement = NotifyService::start(bench, origin, &database, ProviderKind::NULL)?;
    let killed = postgres.number(
        "bench_recovery",
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8",
    )?;
    signal(Signal::KILL, victim.process.id());
    let expected = f64::from(HELD);
    let delivered = wait_for_deliveries(postgres, expected)?;
    progress("");
    drop(replacement);
    let taken_over = format!(
        "SELECT at - {killed} FROM notify_result WHERE kind = 2 AND attempt > 1 ORDER BY at"
    );
    let taken_over = postgres.ask("bench_recovery", &taken_over)?;
    let seconds: Vec<f64> = taken_over
        .lines()
        .filter_map(|ms| ms.parse::<f64>().ok())
        .map(|ms| ms / 1e3)
        .collect();
    report.rounds["recovery"] =
        json!({"asked": HELD, "delivered": delivered, "secondsOfTakenOver": seconds});
    report.sheets.push(ReportTable {
        title: "A worker is killed".to_owned(),
        columns: vec!["asked", "delivered", "taken over", "from kill to result, s"],
        rows: vec![vec![
            HELD.to_string(),
            short(delivered),
            seconds.len().to_string(),
            ranged(&seconds),
        ]],
    });
    let rank = (seconds.len() * 99).div_ceil(100).saturating_sub(1);
    let whole = delivered >= expected;
    let p99 = seconds
        .get(rank)
        .copied()
        .filter(|_| whole)
        .unwrap_or(f64::NAN);
    let what = "recovery of what a SIGKILLed worker held: p99";
    report.figures.push(TargetFigure::number(what, Bound::AtMost(15.0), p99, " s").noting(&format!(
        "{} of {HELD} were in its hands, as an eighth of the permits is kept for CRITICAL and HIGH; {} of {HELD} \
         delivered in all",
        seconds.len(),
        short(delivered)
    )));
    Ok(())
}

/// Waits for at most 60 s until `expected` notifications are delivered, and returns their number.
fn wait_for_deliveries(postgres: &PostgresServer, expected: f64) -> io::Result<f64> {
    let began = Instant::now();
    let sent = "SELECT count(DISTINCT id) FROM notify_result WHERE kind = 2";
    loop {
        let delivered = postgres.number("bench_recovery", sent)?;
        if delivered >= expected || began.elapsed() > Duration::from_secs(60) {
            return Ok(delivered);
        }
        thread::sleep(Duration::from_millis(250));
    }
}

/// Measures the cost of a session that is idle in a transaction, which prevents vacuum from
/// removing dead rows, and the recovery of a restart. Only the database of the session is affected,
/// so a second database with the same load in turn is the reference.
pub(super) fn held_session(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let minutes = bench.pick(0.75, 30.0);
    // About 600 bytes per notification and a few GB of WAL. On a full disk, responses fail.
    bench.needs_room(bench.pick(3, 20) << 30)?;
    let [url, other] = [
        postgres.database(DATABASES[0])?,
        postgres.database(DATABASES[1])?,
    ];
    let beside = NotifyService::start(bench, origin, &other, ProviderKind::NULL)?;
    let service = NotifyService::start(bench, origin, &url, ProviderKind::NULL)?;
    let holder = IdleTransaction::start(postgres, DATABASES[0])?;
    let turns = side_by_side(
        run,
        &service,
        &beside,
        Duration::from_secs_f64(minutes * 60.0),
    )?;
    drop((service, beside));
    // Notifications that another replica accepts between stop and start.
    fill(postgres, DATABASES[0], NORMAL, 1_000, 0)?;
    let restart = Instant::now();
    let service = NotifyService::start(bench, origin, &url, ProviderKind::NULL)?;
    let ready = restart.elapsed();
    while service.sent()? < 100.0 && restart.elapsed().as_secs() < 60 {
        thread::sleep(Duration::from_millis(10));
    }
    progress("");
    let claimed = restart.elapsed().saturating_sub(ready).as_secs_f64();
    drop(service);
    if !holder.is_idle_in_transaction()? {
        return Err(io::Error::other("the idle session has ended"));
    }
    let what = format!("idle-in-transaction session held {minutes} min: ");
    let size = |database| postgres.number(database, "SELECT pg_database_size(current_database())");
    judge(
        &what,
        &turns,
        [size(DATABASES[0])?, size(DATABASES[1])?],
        report,
    );
    report.figures.push(TargetFigure::number(
        &format!("{what}ready to first claims after a restart"),
        Bound::AtMost(1.0),
        claimed,
        " s",
    ));
    let turns: Value = turns
        .iter()
        .map(|turn| {
            json!(turn.map(|work| json!({"delivered": work.delivered, "cpuS": work.cpu_s})))
        })
        .collect();
    report.rounds["held"] = json!({"turns": turns, "firstClaimsS": claimed});
    Ok(())
}

fn judge(what: &str, turns: &[[DeliveryWork; 2]], bytes: [f64; 2], report: &mut BenchReport) {
    let last = &turns[turns.len().saturating_sub(REPORTED_TURNS)..];
    let each = |side: usize| {
        last.iter()
            .map(|turn| turn[side].a_cpu_second())
            .collect::<Vec<_>>()
    };
    let ratios: Vec<f64> = last
        .iter()
        .map(|[held, beside]| held.a_cpu_second() / beside.a_cpu_second())
        .collect();
    report.sheets.push(ReportTable {
        title: format!(
            "A session idle in a transaction, the last {} turns",
            last.len()
        ),
        columns: vec![
            "database",
            "delivered per CPU second",
            "size in the end, GB",
        ],
        rows: vec![
            vec![
                "with it".to_owned(),
                ranged(&each(0)),
                short(bytes[0] / 1e9),
            ],
            vec![
                "without".to_owned(),
                ranged(&each(1)),
                short(bytes[1] / 1e9),
            ],
            vec![
                "with it over without, ×".to_owned(),
                ranged(&ratios),
                short(bytes[0] / bytes[1]),
            ],
        ],
    });
    let [held, beside] = [0, 1].map(|side| {
        last.iter()
            .map(|turn| turn[side])
            .fold(DeliveryWork::default(), DeliveryWork::plus)
    });
    let ratio = held.a_cpu_second() / beside.a_cpu_second();
    let name = format!("{what}delivered per CPU second over one without");
    report.figures.push(
        TargetFigure::number(&name, Bound::AtLeast(0.9), ratio, " ×").noting(&format!(
            "{}/s against {}/s in the last {} turns together, each {} ×; the bound is for 30 min",
            short(held.a_cpu_second()),
            short(beside.a_cpu_second()),
            last.len(),
            ranged(&ratios)
        )),
    );
}

/// Delivered notifications, and the CPU time of service and PostgreSQL for them.
#[derive(Clone, Copy, Default)]
struct DeliveryWork {
    delivered: f64,
    cpu_s: f64,
}

impl DeliveryWork {
    fn plus(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            cpu_s: self.cpu_s + other.cpu_s,
        }
    }

    fn a_cpu_second(self) -> f64 {
        self.delivered / self.cpu_s
    }
}

/// The databases with and without the idle session.
const DATABASES: [&str; 2] = ["bench_held", "bench_beside"];

/// Turns that are reported, at the end of the half hour.
const REPORTED_TURNS: usize = 10;

/// Runs a turn on each database once a minute, so that half an hour of turns fits on a disk. Each
/// goes first equally often, because background work of PostgreSQL after a turn affects the next
/// one.
fn side_by_side(
    run: &NotifyRun<'_>,
    service: &NotifyService,
    beside: &NotifyService,
    long: Duration,
) -> io::Result<Vec<[DeliveryWork; 2]>> {
    let seconds = run.bench.pick(5, 10);
    let began = Instant::now();
    let mut turns = Vec::new();
    while began.elapsed() < long {
        progress(&format!(
            "held session: {} of {} s",
            began.elapsed().as_secs(),
            long.as_secs()
        ));
        let turn = Instant::now();
        let mut works = [DeliveryWork::default(); 2];
        let order = if turns.len() % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            works[side] = work(run, [service, beside][side], seconds)?;
        }
        turns.push(works);
        if !run.bench.quick {
            thread::sleep(Duration::from_secs(60).saturating_sub(turn.elapsed()));
        }
    }
    Ok(turns)
}

/// A session that reads once and then stays idle in its transaction: psql, waiting for input.
struct IdleTransaction<'a> {
    psql: Child,
    postgres: &'a PostgresServer,
    database: &'static str,
}

impl<'a> IdleTransaction<'a> {
    fn start(postgres: &'a PostgresServer, database: &'static str) -> io::Result<Self> {
        let mut command = Command::new("psql");
        command
            .args([&postgres.url(database), "-XAtq", "-v", "ON_ERROR_STOP=1"])
            .env("PGAPPNAME", "holder");
        let psql = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut holder = Self {
            psql,
            postgres,
            database,
        };
        let sql = b"BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM notify_worker;\n";
        // The pipe stays open while the child is kept.
        if let Some(stdin) = &mut holder.psql.stdin {
            stdin.write_all(sql)?;
            stdin.flush()?;
        }
        let began = Instant::now();
        while !holder.is_idle_in_transaction()? {
            if began.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other(
                    "no session is idle in a transaction after 10 s",
                ));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(holder)
    }

    fn is_idle_in_transaction(&self) -> io::Result<bool> {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND application_name = 'holder'
               AND state = 'idle in transaction' AND backend_xmin IS NOT NULL",
            self.database
        );
        Ok(self.postgres.number(self.database, &sql)? > 0.5)
    }
}

impl Drop for IdleTransaction<'_> {
    fn drop(&mut self) {
        let _already_gone = self.psql.kill();
        let _already_reaped = self.psql.wait();
    }
}

/// Sends requests for the given time and waits until all notifications are delivered.
fn work(run: &NotifyRun<'_>, service: &NotifyService, seconds: u32) -> io::Result<DeliveryWork> {
    let (cpu, sent) = (
        service.process.cpu_ns()? + run.postgres.cpu_ns()?,
        service.sent()?,
    );
    let seen =
        service
            .load(seconds)
            .run(run.bench.folder(), service.address, NOTIFICATIONS_PATH)?;
    all_answered([seen])?;
    let asked = Instant::now();
    let delivered = loop {
        let delivered = service.sent()? - sent;
        if delivered >= seen.requests as f64 {
            break delivered;
        }
        if asked.elapsed() > Duration::from_secs(20) {
            return Err(io::Error::other(format!(
                "{delivered} of {} were delivered",
                seen.requests
            )));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let spent = (service.process.cpu_ns()? + run.postgres.cpu_ns()?).saturating_sub(cpu);
    Ok(DeliveryWork {
        delivered,
        cpu_s: spent as f64 / 1e9,
    })
}
