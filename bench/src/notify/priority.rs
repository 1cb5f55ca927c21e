use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Run;
use super::backlog::{CRITICAL, HIGH, LOW, fill, prepare};
use super::service::{Carrier, Service};
use crate::figure::{Bound, Figure, short};
use crate::host::Strangers;
use crate::http::Client;
use crate::postgres::Postgres;
use crate::report::{Report, Sheet, median, progress, ranged};
use crate::rounds::{paired, range};

/// One queue holds nothing but what is asked for, the other very many LOW besides.
const EMPTY: &str = "bench_priority_empty";
const BACKLOG: &str = "bench_priority";

/// How often each of CRITICAL and HIGH is asked for: fifty times a second. No multiple of a
/// millisecond: instants are kept as whole ones, and in step with those a whole turn would be
/// rounded up, or down.
const PERIOD: Duration = Duration::from_micros(20_130);

/// Deliveries a second when LOW is paced: some percent of what the machine can do.
const PACE: u32 = 2_000;

/// From acceptance to the provider's answer, in milliseconds. The null provider answers at once, so
/// that this is the time to its call and a little more. Only what was accepted while LOW waited
/// counts; what has not come is as late as it is old.
#[derive(Clone, Copy, Debug)]
struct Delay {
    p50: f64,
    /// Not a number if there are too few to tell.
    p99: f64,
    count: f64,
}

/// Fewer have no p99.
const FEWEST: usize = 100;

/// What came of one case, turn by turn.
struct Case {
    name: &'static str,
    turns: Vec<Turn>,
}

struct Turn {
    critical: Delay,
    high: Delay,
    /// LOW delivered a second, and left at the end.
    low: (f64, f64),
    strangers: f64,
}

/// A queue, and how fast its rows may go to the provider.
#[derive(Clone, Copy)]
struct Queue<'a> {
    database: &'static str,
    url: &'a str,
    carrier: Carrier,
}

/// CRITICAL and HIGH while very many LOW wait.
pub(super) fn in_front_of_a_backlog(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let (rows, seconds, turns) = bench.pick((200_000, 5, 1), (1_000_000, 20, 5));
    let long = Duration::from_secs(seconds);
    progress("priority: filling the queue");
    let (empty, backlog) = (
        prepare(bench, postgres, origin, EMPTY)?,
        prepare(bench, postgres, origin, BACKLOG)?,
    );
    wait_in_line(postgres, rows)?;
    let paced = Carrier::Null {
        permits: 64,
        rate: Some(PACE),
    };
    let queues = [
        Queue {
            database: EMPTY,
            url: &empty,
            carrier: paced,
        },
        Queue {
            database: BACKLOG,
            url: &backlog,
            carrier: paced,
        },
    ];
    let mut cases = [
        "empty queue",
        "LOW waiting and paced",
        "LOW waiting, both cores saturated",
    ]
    .map(Case::new);
    for turn in 1..=turns {
        // Whoever goes first goes second in the next turn.
        for at in if turn % 2 == 1 { [0, 1] } else { [1, 0] } {
            let (queue, case) = (queues[at], &mut cases[at]);
            progress(&format!("priority: turn {turn} of {turns}: {}", case.name));
            case.turns.push(measure(run, queue, long)?);
        }
    }
    let unhurried = Queue {
        carrier: Carrier::NULL,
        ..queues[1]
    };
    let turns = bench.pick(1, 5);
    for turn in 1..=turns {
        progress(&format!(
            "priority: turn {turn} of {turns}: {}",
            cases[2].name
        ));
        wait_in_line(postgres, rows)?;
        cases[2].turns.push(measure(run, unhurried, long)?);
    }
    progress("");
    report.sheets.push(sheet(rows, &cases));
    let what = |name: &str| {
        format!(
            "{name}, accept to provider call, with {} LOW waiting",
            short(f64::from(rows))
        )
    };
    report.rounds["priority"] = cases.iter().map(Case::data).collect();
    let [empty, paced, saturated] = &cases;
    let figures = &mut report.figures;
    let mut at_most = |name: &str, most: f64, delay: fn(&Turn) -> Delay| {
        let seen = saturated.turns.iter().map(delay);
        let (p99, count): (Vec<_>, Vec<_>) = seen.map(|delay| (delay.p99, delay.count)).unzip();
        let name = format!("{}: p99, both cores saturated", what(name));
        let note = format!("{:.0} accepted while LOW waited", count.iter().sum::<f64>());
        figures.push(Figure::number(&name, Bound::AtMost(most), median(&p99), " ms").noting(&note));
    };
    at_most("CRITICAL", 10.0, |turn| turn.critical);
    at_most("HIGH", 50.0, |turn| turn.high);
    let p99 = |case: &Case| {
        case.turns
            .iter()
            .map(|turn| turn.critical.p99)
            .collect::<Vec<_>>()
    };
    let (paced, empty) = (p99(paced), p99(empty));
    let ratios = paired(&paced, &empty);
    // A turn without a p99 is no measurement, whatever the others say.
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
    figures.push(Figure::number(&name, Bound::AtMost(1.2), ratio, " ×").noting(&note));
    Ok(())
}

impl Case {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            turns: Vec::new(),
        }
    }

    fn data(&self) -> Value {
        let delay =
            |delay: Delay| json!({"p50Ms": delay.p50, "p99Ms": delay.p99, "count": delay.count});
        let turn = |turn: &Turn| {
            json!({
                "critical": delay(turn.critical), "high": delay(turn.high),
                "lowPerSecond": turn.low.0, "lowLeft": turn.low.1, "strangersPercent": turn.strangers,
            })
        };
        json!({"case": self.name, "turns": self.turns.iter().map(turn).collect::<Value>()})
    }
}

/// So many LOW more, in a server whose own log has files enough, as one has that did as much
/// before: each new file of 16 MB is filled with zeros and synced before the commits behind it go
/// on.
fn wait_in_line(postgres: &Postgres, rows: u32) -> io::Result<()> {
    fill(postgres, BACKLOG, LOW, rows, 60)?;
    postgres.ask(BACKLOG, "CHECKPOINT")?;
    Ok(())
}

fn measure(run: &Run<'_>, queue: Queue<'_>, long: Duration) -> io::Result<Turn> {
    let Run {
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
    let strangers = Strangers::watch()?;
    let service = Service::start(bench, origin, queue.url, queue.carrier)?;
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
    let delay = |lane| delay(postgres, queue.database, lane, (since, until));
    let (critical, high) = (delay(CRITICAL)?, delay(HIGH)?);
    Ok(Turn {
        critical,
        high,
        low: ((before - left) / took, left),
        strangers: strangers.percent()?,
    })
}

fn sheet(rows: u32, cases: &[Case]) -> Sheet {
    let line = |case: &Case| {
        let of = |seen: fn(&Turn) -> f64| case.turns.iter().map(seen).collect::<Vec<_>>();
        vec![
            case.name.to_owned(),
            short(median(&of(|turn| turn.critical.p50))),
            ranged(&of(|turn| turn.critical.p99)),
            short(median(&of(|turn| turn.high.p50))),
            ranged(&of(|turn| turn.high.p99)),
            short(of(|turn| turn.critical.count).iter().sum()),
            short(median(&of(|turn| turn.low.0))),
            short(case.turns.last().map_or(f64::NAN, |turn| turn.low.1)),
            format!("{:.0} %", median(&of(|turn| turn.strangers))),
        ]
    };
    Sheet {
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
            "strangers' CPU",
        ],
        rows: cases.iter().map(line).collect(),
    }
}

/// One CRITICAL and one HIGH each period, on kept connections.
fn trickle(service: &Service, long: Duration) -> io::Result<()> {
    let bearer = format!("Bearer {}", service.token);
    let mut client = Client::connect(service.address)?;
    let body = |priority: &str| {
        super::service::BODY.replacen('{', &format!("{{\"priority\":\"{priority}\","), 1)
    };
    let (critical, high) = (body("CRITICAL"), body("HIGH"));
    let began = Instant::now();
    let mut due = began;
    while began.elapsed() < long {
        for body in [&critical, &high] {
            client
                .ask(
                    "POST",
                    super::service::PATH,
                    &[("Authorization", &bearer)],
                    body,
                )?
                .expect(201)?;
        }
        due += PERIOD;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    // The last ones are delivered and written down.
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// When the last LOW left the queue for a provider.
fn last_low(postgres: &Postgres) -> io::Result<f64> {
    let sql = format!(
        "SELECT max(s.began_at) FROM notify_record r JOIN notify_result s USING (id) WHERE r.lane = {LOW}"
    );
    postgres.number(BACKLOG, &sql)
}

/// Of those that were accepted in this time, in milliseconds of the epoch.
fn delay(
    postgres: &Postgres,
    database: &str,
    lane: u8,
    (since, until): (f64, f64),
) -> io::Result<Delay> {
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
    let p99 = if took.len() < FEWEST {
        f64::NAN
    } else {
        within(&took, 0.99)
    };
    Ok(Delay {
        p50: within(&took, 0.5),
        p99,
        count: took.len() as f64,
    })
}

/// A percentile of whole milliseconds, which are what the store keeps: those of one millisecond are
/// taken as spread over it evenly, as is usual for values in classes.
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
    fn a_percentile_lies_within_its_millisecond() {
        let hundred = [vec![1.0; 50], vec![2.0; 50]].concat();
        assert!((within(&hundred, 0.25) - 1.0).abs() < 1e-9);
        assert!((within(&hundred, 0.5) - 1.5).abs() < 1e-9);
        assert!((within(&hundred, 0.99) - 2.48).abs() < 1e-9);
        assert!(within(&[], 0.5).is_nan());
    }
}
