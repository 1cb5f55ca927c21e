use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NotifyRun;
use super::backlog::{CRITICAL, HIGH, LOW, fill, prepare};
use super::service::{NotifyService, ProviderKind};
use crate::figure::{Bound, TargetFigure, short};
use crate::host::ForeignCpuMonitor;
use crate::http::HttpClient;
use crate::postgres::PostgresServer;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};
use crate::rounds::{paired, range};

/// Databases: one with an empty queue, one with a large backlog of LOW.
const EMPTY_DATABASE: &str = "bench_priority_empty";
const BACKLOG_DATABASE: &str = "bench_priority";

/// Interval between CRITICAL and HIGH requests, about fifty per second. Not a multiple of a
/// millisecond: timestamps are whole milliseconds, and a turn in step with them would be rounded up
/// or down as a whole.
const URGENT_PERIOD: Duration = Duration::from_micros(20_130);

/// Deliveries per second when LOW is rate-limited: a few percent of the machine's capacity.
const LOW_RATE_PER_SECOND: u32 = 2_000;

/// Time from acceptance to the provider's response in milliseconds. The null provider responds at
/// once, so this is about the time to its call. Only notifications accepted while LOW waited count;
/// an undelivered one counts with its age.
#[derive(Clone, Copy, Debug)]
struct DeliveryDelay {
    p50: f64,
    /// NaN if there are too few values.
    p99: f64,
    count: f64,
}

/// Minimum number of values for a p99.
const MIN_VALUES_FOR_P99: usize = 100;

/// The results of one case, by turn.
struct PriorityCase {
    name: &'static str,
    turns: Vec<PriorityTurn>,
}

struct PriorityTurn {
    critical: DeliveryDelay,
    high: DeliveryDelay,
    /// LOW notifications delivered per second, and the rest at the end.
    low: (f64, f64),
    foreign_cpu: f64,
}

/// A queue and its delivery rate limit.
#[derive(Clone, Copy)]
struct QueueSetup<'a> {
    database: &'static str,
    url: &'a str,
    carrier: ProviderKind,
}

/// Measures CRITICAL and HIGH in front of a backlog of LOW.
pub(super) fn in_front_of_a_backlog(
    run: &NotifyRun<'_>,
    report: &mut BenchReport,
) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let (rows, seconds, turns) = bench.pick((200_000, 5, 1), (1_000_000, 20, 5));
    let long = Duration::from_secs(seconds);
    progress("priority: filling the queue");
    let (empty, backlog) = (
        prepare(bench, postgres, origin, EMPTY_DATABASE)?,
        prepare(bench, postgres, origin, BACKLOG_DATABASE)?,
    );
    add_low_backlog(postgres, rows)?;
    let paced = ProviderKind::Null {
        permits: 64,
        rate: Some(LOW_RATE_PER_SECOND),
    };
    let queues = [
        QueueSetup {
            database: EMPTY_DATABASE,
            url: &empty,
            carrier: paced,
        },
        QueueSetup {
            database: BACKLOG_DATABASE,
            url: &backlog,
            carrier: paced,
        },
    ];
    let mut cases = [
        "empty queue",
        "LOW waiting and paced",
        "LOW waiting, both cores saturated",
    ]
    .map(PriorityCase::new);
    for turn in 1..=turns {
        // Alternates which case goes first.
        for at in if turn % 2 == 1 { [0, 1] } else { [1, 0] } {
            let (queue, case) = (queues[at], &mut cases[at]);
            progress(&format!("priority: turn {turn} of {turns}: {}", case.name));
            case.turns.push(measure(run, queue, long)?);
        }
    }
    let unhurried = QueueSetup {
        carrier: ProviderKind::NULL,
        ..queues[1]
    };
    let turns = bench.pick(1, 5);
    for turn in 1..=turns {
        progress(&format!(
            "priority: turn {turn} of {turns}: {}",
            cases[2].name
        ));
        add_low_backlog(postgres, rows)?;
        cases[2].turns.push(measure(run, unhurried, long)?);
    }
    progress("");
    report.sheets.push(sheet(rows, &cases));
    report.rounds["priority"] = cases.iter().map(PriorityCase::data).collect();
    judge(rows, &cases, report);
    Ok(())
}

/// Adds the figures of the three cases: empty queue, LOW rate-limited, both cores saturated.
fn judge(rows: u32, cases: &[PriorityCase; 3], report: &mut BenchReport) {
    let what = |name: &str| {
        format!(
            "{name}, accept to provider call, with {} LOW waiting",
            short(f64::from(rows))
        )
    };
    let [empty, paced, saturated] = cases;
    let figures = &mut report.figures;
    let mut at_most = |name: &str, most: f64, delay: fn(&PriorityTurn) -> DeliveryDelay| {
        let seen = saturated.turns.iter().map(delay);
        let (p99, count): (Vec<_>, Vec<_>) = seen.map(|delay| (delay.p99, delay.count)).unzip();
        let name = format!("{}: p99, both cores saturated", what(name));
        let note = format!("{:.0} accepted while LOW waited", count.iter().sum::<f64>());
        figures.push(
            TargetFigure::number(&name, Bound::AtMost(most), median(&p99), " ms").noting(&note),
        );
    };
    at_most("CRITICAL", 10.0, |turn| turn.critical);
    at_most("HIGH", 50.0, |turn| turn.high);
    let p99 = |case: &PriorityCase| {
        case.turns
            .iter()
            .map(|turn| turn.critical.p99)
            .collect::<Vec<_>>()
    };
    let (paced, empty) = (p99(paced), p99(empty));
    let ratios = paired(&paced, &empty);
    // A turn without a p99 invalidates the measurement.
    let ratio = if ratios.iter().any(|ratio| ratio.is_nan()) {
        f64::NAN
    } else {
        median(&ratios)
    };
    let note = format!(
        "by pairs, {}; {} ms against {} ms",
        range(&ratios),
        ranged(&paced),
        ranged(&empty)
    );
    let name = format!("{}: p99 over an empty queue, LOW paced", what("CRITICAL"));
    figures.push(TargetFigure::number(&name, Bound::AtMost(1.2), ratio, " ×").noting(&note));
}

impl PriorityCase {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            turns: Vec::new(),
        }
    }

    fn data(&self) -> Value {
        let delay = |delay: DeliveryDelay| json!({"p50Ms": delay.p50, "p99Ms": delay.p99, "count": delay.count});
        let turn = |turn: &PriorityTurn| {
            json!({
                "critical": delay(turn.critical), "high": delay(turn.high),
                "lowPerSecond": turn.low.0, "lowLeft": turn.low.1, "strangersPercent": turn.foreign_cpu,
            })
        };
        json!({"case": self.name, "turns": self.turns.iter().map(turn).collect::<Value>()})
    }
}

/// Adds LOW notifications, then triggers a checkpoint so that PostgreSQL has enough recycled WAL
/// segments, like a server under continuous load: each new segment of 16 MB is filled with zeros
/// and synced, which delays commits.
fn add_low_backlog(postgres: &PostgresServer, rows: u32) -> io::Result<()> {
    fill(postgres, BACKLOG_DATABASE, LOW, rows, 60)?;
    postgres.ask(BACKLOG_DATABASE, "CHECKPOINT")?;
    Ok(())
}

fn measure(run: &NotifyRun<'_>, queue: QueueSetup<'_>, long: Duration) -> io::Result<PriorityTurn> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let low = || {
        postgres.number(
            queue.database,
            &format!("SELECT count(*) FROM notify_queue WHERE lane = {LOW}"),
        )
    };
    let foreign_cpu = ForeignCpuMonitor::watch()?;
    let service = NotifyService::start(bench, origin, queue.url, queue.carrier)?;
    let before = low()?;
    let since = postgres.number(
        queue.database,
        "SELECT extract(epoch FROM clock_timestamp()) * 1000",
    )?;
    let began = Instant::now();
    trickle(&service, long)?;
    let (left, took) = (low()?, began.elapsed().as_secs_f64());
    let until = if before > 0.0 && left < 0.5 {
        last_low(postgres)?
    } else {
        f64::INFINITY
    };
    let took = took.min((until - since) / 1e3);
    let delay = |lane| delay(postgres, queue.database, lane, since..until);
    let (critical, high) = (delay(CRITICAL)?, delay(HIGH)?);
    Ok(PriorityTurn {
        critical,
        high,
        low: ((before - left) / took, left),
        foreign_cpu: foreign_cpu.percent()?,
    })
}

fn sheet(rows: u32, cases: &[PriorityCase]) -> ReportTable {
    let line = |case: &PriorityCase| {
        let of = |seen: fn(&PriorityTurn) -> f64| case.turns.iter().map(seen).collect::<Vec<_>>();
        vec![
            case.name.to_owned(),
            short(median(&of(|turn| turn.critical.p50))),
            ranged(&of(|turn| turn.critical.p99)),
            short(median(&of(|turn| turn.high.p50))),
            ranged(&of(|turn| turn.high.p99)),
            short(of(|turn| turn.critical.count).iter().sum()),
            short(median(&of(|turn| turn.low.0))),
            short(case.turns.last().map_or(f64::NAN, |turn| turn.low.1)),
            format!("{:.0} %", median(&of(|turn| turn.foreign_cpu))),
        ]
    };
    ReportTable {
        title: format!(
            "CRITICAL and HIGH, 50/s each, in front of {} LOW",
            short(f64::from(rows))
        ),
        columns: vec![
            "case",
            "CRITICAL p50, ms",
            "CRITICAL p99, ms",
            "HIGH p50, ms",
            "HIGH p99, ms",
            "CRITICAL accepted",
            "LOW delivered/s",
            "LOW left",
            "other CPU",
        ],
        rows: cases.iter().map(line).collect(),
    }
}

/// Sends one CRITICAL and one HIGH request per period, on keep-alive connections.
fn trickle(service: &NotifyService, long: Duration) -> io::Result<()> {
    let bearer = format!("Bearer {}", service.token);
    let mut client = HttpClient::connect(service.address)?;
    let body = |priority: &str| {
        super::service::REQUEST_BODY.replacen('{', &format!("{{\"priority\":\"{priority}\","), 1)
    };
    let (critical, high) = (body("CRITICAL"), body("HIGH"));
    let began = Instant::now();
    let mut due = began;
    while began.elapsed() < long {
        for body in [&critical, &high] {
            client
                .ask(
                    "POST",
                    super::service::NOTIFICATIONS_PATH,
                    &[("Authorization", &bearer)],
                    body,
                )?
                .expect(201)?;
        }
        due += URGENT_PERIOD;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    // Wait until the last ones are delivered and recorded.
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// Returns the time when the last LOW left the queue for a provider.
fn last_low(postgres: &PostgresServer) -> io::Result<f64> {
    let sql = format!(
        "SELECT max(s.began_at) FROM notify_record r JOIN notify_result s USING (id) WHERE r.lane = {LOW}"
    );
    postgres.number(BACKLOG_DATABASE, &sql)
}

/// Returns the delays of notifications accepted within a period, given in milliseconds since the
/// epoch.
fn delay(
    postgres: &PostgresServer,
    database: &str,
    lane: u8,
    period: Range<f64>,
) -> io::Result<DeliveryDelay> {
    let Range {
        start: since,
        end: until,
    } = period;
    let sql = format!(
        "SELECT coalesce(s.at, (extract(epoch FROM clock_timestamp()) * 1000)::int8) - r.created_at
         FROM notify_record r LEFT JOIN notify_result s ON s.id = r.id AND s.kind = 2
         WHERE r.lane = {lane} AND r.created_at >= '{since}'::float8 AND r.created_at < '{until}'::float8"
    );
    let answer = postgres.ask(database, &sql)?;
    let mut took: Vec<f64> = answer
        .lines()
        .map(|text| text.parse().unwrap_or(f64::NAN))
        .collect();
    took.sort_by(f64::total_cmp);
    let p99 = if took.len() < MIN_VALUES_FOR_P99 {
        f64::NAN
    } else {
        within(&took, 0.99)
    };
    Ok(DeliveryDelay {
        p50: within(&took, 0.5),
        p99,
        count: took.len() as f64,
    })
}

/// Returns a percentile of whole milliseconds, the store's resolution. Values of one millisecond
/// are assumed to be spread over it evenly, as is usual for grouped data.
fn within(sorted: &[f64], share: f64) -> f64 {
    let rank = share * sorted.len() as f64;
    let Some(class) = sorted.get((rank as usize).min(sorted.len().saturating_sub(1))) else {
        return f64::NAN;
    };
    let below = sorted.partition_point(|value| value < class);
    let inside = sorted.partition_point(|value| value <= class) - below;
    (class - 0.5 + (rank - below as f64) / inside as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_within_its_millisecond() {
        let hundred = [vec![1.0; 50], vec![2.0; 50]].concat();
        assert!((within(&hundred, 0.25) - 1.0).abs() < 1e-9);
        assert!((within(&hundred, 0.5) - 1.5).abs() < 1e-9);
        assert!((within(&hundred, 0.99) - 2.48).abs() < 1e-9);
        assert!(within(&[], 0.5).is_nan());
    }
}
