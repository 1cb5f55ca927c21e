use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::http;
use crate::load::Paced;
use crate::peers::{ANSWER, Gateway, PATH, Postern};
use crate::process::signal;
use crate::report::{Report, median, progress, ranged};
use crate::rounds::{self, Question, paired, range};

/// So often a file goes live while the load runs: a stall of 10 ms is then one request in a hundred. Latencies are watched by the
/// second, and each second has one reload.
const EVERY: Duration = Duration::from_secs(1);

/// Requests a second, open loop: a fraction of what the gateway can do, so that cores are left for reading the file
/// and a step is a stall, not a share of a core that the load lacks.
const RATE: u32 = 5_000;

/// The runs, in pairs: one without a reload, one with a reload every [`EVERY`].
#[derive(Default)]
struct Runs {
    still: Vec<Paced>,
    disturbed: Vec<Paced>,
    to_live_ms: Vec<f64>,
}

/// A file of ten thousand routes goes live under load, again and again.
pub(super) fn ten_thousand_routes(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let large = Postern { routes: 10_000, ..Postern::default() };
    let gateway = large.start(bench, origin)?;
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question { path: PATH, token: &token, body: ANSWER };
    let load = || Paced::run("Postern", gateway.address, &question, (RATE, bench.pick(3, 6)));
    let rounds = bench.pick(3, 7);
    let text = fs::read_to_string(&gateway.file)?;
    let (mut runs, mut version) = (Runs::default(), version(&gateway)?);
    for round in 1..=rounds {
        progress(&format!("reload: round {round} of {rounds}"));
        runs.still.push(load()?);
        runs.disturbed.push(thread::scope(|scope| -> io::Result<Paced> {
            let running = scope.spawn(load);
            while !running.is_finished() {
                let began = Instant::now();
                let fresh = format!("{text}# {}\n", runs.to_live_ms.len());
                runs.to_live_ms.push(reload(&gateway, &fresh, &mut version)?);
                thread::sleep(EVERY.saturating_sub(began.elapsed()));
            }
            running.join().map_err(|_| io::Error::other("the load panicked"))?
        })?);
    }
    progress("");
    runs.tell(report);
    Ok(())
}

fn loaded(what: &str) -> String {
    format!("reload of a 10,000-route file: {what}")
}

impl Runs {
    fn tell(&self, report: &mut Report) {
        let all = || self.still.iter().chain(&self.disturbed);
        let failed: u64 = all().map(|seen| seen.failed).sum();
        let p99 = |runs: &[Paced]| runs.iter().map(|seen| seen.at(99.0)).collect::<Vec<_>>();
        let (still, disturbed) = (p99(&self.still), p99(&self.disturbed));
        let steps = paired(&disturbed, &still);
        let figures = &mut report.figures;
        let to_live = median(&self.to_live_ms);
        let reloads = self.to_live_ms.len();
        let note = format!("{} ms, {reloads} reloads under load", range(&self.to_live_ms));
        let bound = Bound::AtMost(100.0);
        figures.push(rounds::figure(&loaded("to live"), bound, to_live, " ms", failed).noting(&note));
        let bound = Bound::AtMost(0.0);
        figures.push(Figure::number(&loaded("failed requests"), bound, failed as f64, ""));
        let in_time = all().all(Paced::is_in_time);
        let step = if in_time { median(&steps) } else { f64::NAN };
        let mut note =
            format!("by pairs, {}; {} ms against {} ms", range(&steps), ranged(&disturbed), ranged(&still));
        if !in_time {
            let least = all().map(Paced::achieved).fold(f64::INFINITY, f64::min) * 100.0;
            note = format!("a run achieved only {least:.1} % of its rate; {note}");
        }
        let what = loaded("p99 with a reload every second over that of a run without one");
        figures.push(rounds::figure(&what, Bound::AtMost(1.2), step, " ×", failed).noting(&note));
        let json = |runs: &[Paced]| runs.iter().map(Paced::json).collect::<Value>();
        report.rounds["reload"] = json!({
            "toLiveMs": self.to_live_ms, "p99Ms": disturbed, "p99MsWithout": still,
            "seen": json(&self.disturbed), "seenWithout": json(&self.still),
        });
    }
}

/// Writes the file, says so, and waits until it is live; milliseconds.
fn reload(gateway: &Gateway, text: &str, version: &mut u64) -> io::Result<f64> {
    let fresh = gateway.file.with_extension("fresh");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, &gateway.file)?;
    let began = Instant::now();
    signal("-HUP", gateway.process.id());
    let mut client = http::Client::connect(gateway.admin)?;
    loop {
        let answer = client.ask("GET", "/config/status", &[], "")?.json();
        let live = answer["version"].as_u64().unwrap_or(0);
        if live > *version {
            *version = live;
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
        if began.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::other(format!("the new file is not live after 10 s: {answer}")));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn version(gateway: &Gateway) -> io::Result<u64> {
    let answer = http::once(gateway.admin, "GET", "/config/status", &[], "")?.expect(200)?;
    Ok(answer.json()["version"].as_u64().unwrap_or(0))
}
