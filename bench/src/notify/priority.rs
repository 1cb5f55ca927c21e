use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Run;
use super::backlog::{CRITICAL, HIGH, LOW, fill, prepare};
use super::service::{Carrier, Service};
use crate::figure::{Bound, Figure, short};
use crate::host::Strangers;
use crate::http::Client;
use crate::postgres::Postgres;
use crate::report::{Report, Sheet, progress};

const DATABASE: &str = "bench_priority";

/// How often each of CRITICAL and HIGH is asked for: fifty times a second.
const PERIOD: Duration = Duration::from_millis(20);

/// Deliveries a second when LOW is paced: some percent of what the machine can do.
const PACE: u32 = 2_000;

/// From acceptance to the provider's answer, in milliseconds. The null provider answers at once, so that this is the
/// time to its call and a little more.
#[derive(Clone, Copy, Debug)]
struct Delay {
    p50: f64,
    p99: f64,
    count: f64,
}

/// What came of one case.
struct Case {
    name: &'static str,
    critical: Delay,
    high: Delay,
    /// LOW delivered a second, and left at the end.
    low: (f64, f64),
    strangers: f64,
}

/// CRITICAL and HIGH while very many LOW wait.
pub(super) fn in_front_of_a_backlog(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let (rows, seconds) = run.bench.pick((200_000, 5), (1_000_000, 20));
    let long = Duration::from_secs(seconds);
    let paced = Carrier::Null { permits: 64, rate: Some(PACE) };
    let cases = [
        measure(run, "empty queue", 0, paced, long)?,
        measure(run, "LOW waiting and paced", rows, paced, long)?,
        measure(run, "LOW waiting, both cores saturated", rows, Carrier::NULL, long)?,
    ];
    progress("");
    report.sheets.push(sheet(rows, &cases));
    let what =
        |name: &str| format!("{name}, accept to provider call, with {} LOW waiting", short(f64::from(rows)));
    let [empty, paced, saturated] = &cases;
    let both = "p99, both cores saturated";
    let figures = &mut report.figures;
    let name = format!("{}: {both}", what("CRITICAL"));
    figures.push(Figure::number(&name, Bound::AtMost(10.0), saturated.critical.p99, " ms"));
    let ratio = paced.critical.p99.max(1.0) / empty.critical.p99.max(1.0);
    let note =
        format!("{:.0} ms against {:.0} ms, in whole milliseconds", paced.critical.p99, empty.critical.p99);
    let name = format!("{}: p99 over an empty queue, LOW paced", what("CRITICAL"));
    figures.push(Figure::number(&name, Bound::AtMost(1.2), ratio, " ×").noting(&note));
    let name = format!("{}: {both}", what("HIGH"));
    figures.push(Figure::number(&name, Bound::AtMost(50.0), saturated.high.p99, " ms"));
    let counts = cases.iter().map(|case| json!([case.name, case.critical.count, case.high.count]));
    report.rounds["priority"] = counts.collect();
    Ok(())
}

fn measure(
    run: &Run<'_>,
    name: &'static str,
    rows: u32,
    carrier: Carrier,
    long: Duration,
) -> io::Result<Case> {
    let Run { bench, postgres, origin, .. } = *run;
    progress(&format!("priority: {name}"));
    let database = prepare(bench, postgres, origin, DATABASE)?;
    if rows > 0 {
        fill(postgres, DATABASE, LOW, rows, 60)?;
    }
    let strangers = Strangers::watch()?;
    let service = Service::start(bench, origin, &database, carrier)?;
    let began = Instant::now();
    trickle(&service, long)?;
    let left = postgres.number(DATABASE, &format!("SELECT count(*) FROM notify_queue WHERE lane = {LOW}"))?;
    let taken = (f64::from(rows) - left) / began.elapsed().as_secs_f64();
    let (critical, high) = (delay(postgres, CRITICAL)?, delay(postgres, HIGH)?);
    Ok(Case { name, critical, high, low: (taken, left), strangers: strangers.percent()? })
}

fn sheet(rows: u32, cases: &[Case]) -> Sheet {
    let line = |case: &Case| {
        vec![
            case.name.to_owned(),
            format!("{:.0} / {:.0}", case.critical.p50, case.critical.p99),
            format!("{:.0} / {:.0}", case.high.p50, case.high.p99),
            short(case.low.0),
            short(case.low.1),
            format!("{:.0} %", case.strangers),
        ]
    };
    Sheet {
        title: format!("CRITICAL and HIGH, 50/s each, in front of {} LOW", short(f64::from(rows))),
        columns: vec![
            "case",
            "CRITICAL p50 / p99, ms",
            "HIGH p50 / p99, ms",
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
    let body =
        |priority: &str| super::service::BODY.replacen('{', &format!("{{\"priority\":\"{priority}\","), 1);
    let (critical, high) = (body("CRITICAL"), body("HIGH"));
    let began = Instant::now();
    let mut due = began;
    while began.elapsed() < long {
        for body in [&critical, &high] {
            client.ask("POST", super::service::PATH, &[("Authorization", &bearer)], body)?.expect(201)?;
        }
        due += PERIOD;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    // The last ones are delivered and written down.
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn delay(postgres: &Postgres, lane: u8) -> io::Result<Delay> {
    let sql = format!(
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY s.at - r.created_at),
                percentile_disc(0.99) WITHIN GROUP (ORDER BY s.at - r.created_at), count(*)
         FROM notify_record r JOIN notify_result s USING (id) WHERE r.lane = {lane}"
    );
    let answer = postgres.ask(DATABASE, &sql)?;
    let numbers: Vec<f64> = answer.split('|').map(|text| text.parse().unwrap_or(f64::NAN)).collect();
    match numbers.as_slice() {
        [p50, p99, count] => Ok(Delay { p50: *p50, p99: *p99, count: *count }),
        _ => Err(io::Error::other(format!("psql answered {answer:?}"))),
    }
}
