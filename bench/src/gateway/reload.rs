use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::http;
use crate::load::Paced;
use crate::peers::{ANSWER, Gateway, PATH, Postern};
use crate::process::signal;
use crate::report::{Report, median, progress, ranged};
use crate::rounds::{self, Question, paired, range};

/// So often a file goes live while the load runs: a stall of 10 ms is then one request in a
/// hundred. Latencies are watched by the second, and each second has one reload.
const EVERY: Duration = Duration::from_secs(1);

/// How often the operator asks whether the file is live.
const ASKS: Duration = Duration::from_millis(5);

/// How long the operator asks when nothing goes live: about as long as a reload takes.
const LIVE: Duration = Duration::from_millis(50);

/// Requests a second, open loop: a fraction of what the gateway can do, so that cores are left for
/// reading the file and a step is a stall, not a share of a core that the load lacks.
const RATE: u32 = 5_000;

/// The runs, in pairs: one without a reload, one with a reload every [`EVERY`].
#[derive(Default)]
struct Runs {
    still: Vec<Paced>,
    disturbed: Vec<Paced>,
}

/// Writes files and asks about them beside a load, in both runs of a pair alike: all that they
/// differ by is what the gateway does.
struct Operator<'a> {
    gateway: &'a Gateway,
    admin: http::Client,
    text: String,
    to_live_ms: Vec<f64>,
}

/// A file of ten thousand routes goes live under load, again and again.
pub(super) fn ten_thousand_routes(
    bench: &Bench,
    origin: &Origin,
    report: &mut Report,
) -> io::Result<()> {
    let large = Postern {
        routes: 10_000,
        ..Postern::default()
    };
    let gateway = large.start(bench, origin)?;
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question {
        path: PATH,
        token: &token,
        body: ANSWER,
    };
    let load = || Paced::run("Postern", gateway.address, &question, (RATE, 3));
    let rounds = bench.pick(5, 30);
    let (mut runs, mut operator) = (Runs::default(), Operator::new(&gateway)?);
    for round in 1..=rounds {
        progress(&format!("reload: round {round} of {rounds}"));
        runs.still.push(operator.beside(load, Operator::write)?);
        runs.disturbed
            .push(operator.beside(load, Operator::reload)?);
    }
    progress("");
    runs.tell(&operator.to_live_ms, report);
    Ok(())
}

fn loaded(what: &str) -> String {
    format!("reload of a 10,000-route file: {what}")
}

impl Runs {
    fn tell(&self, to_live_ms: &[f64], report: &mut Report) {
        let all = || self.still.iter().chain(&self.disturbed);
        let failed: u64 = all().map(|seen| seen.failed).sum();
        let p99 = |runs: &[Paced]| runs.iter().map(|seen| seen.at(99.0)).collect::<Vec<_>>();
        let (still, disturbed) = (p99(&self.still), p99(&self.disturbed));
        let steps = paired(&disturbed, &still);
        let figures = &mut report.figures;
        let to_live = median(to_live_ms);
        let reloads = to_live_ms.len();
        let note = format!("{} ms, {reloads} reloads under load", range(to_live_ms));
        let bound = Bound::AtMost(100.0);
        figures
            .push(rounds::figure(&loaded("to live"), bound, to_live, " ms", failed).noting(&note));
        let bound = Bound::AtMost(0.0);
        figures.push(Figure::number(
            &loaded("failed requests"),
            bound,
            failed as f64,
            "",
        ));
        let in_time = all().all(Paced::is_in_time);
        let step = if in_time { median(&steps) } else { f64::NAN };
        let mut note = format!(
            "by pairs, {}; {} ms against {} ms",
            range(&steps),
            ranged(&disturbed),
            ranged(&still)
        );
        if !in_time {
            let least = all().map(Paced::achieved).fold(f64::INFINITY, f64::min) * 100.0;
            note = format!("a run achieved only {least:.1} % of its rate; {note}");
        }
        let what = loaded("p99 with a reload every second over that of a run without one");
        figures.push(rounds::figure(&what, Bound::AtMost(1.2), step, " ×", failed).noting(&note));
        let json = |runs: &[Paced]| runs.iter().map(Paced::json).collect::<Value>();
        report.rounds["reload"] = json!({
            "toLiveMs": to_live_ms, "p99Ms": disturbed, "p99MsWithout": still,
            "seen": json(&self.disturbed), "seenWithout": json(&self.still),
        });
    }
}

impl<'a> Operator<'a> {
    fn new(gateway: &'a Gateway) -> io::Result<Self> {
        let text = fs::read_to_string(&gateway.file)?;
        let admin = http::Client::connect(gateway.admin)?;
        Ok(Self {
            gateway,
            admin,
            text,
            to_live_ms: Vec::new(),
        })
    }

    /// Runs the load, and does something every [`EVERY`] meanwhile.
    fn beside(
        &mut self,
        load: impl FnOnce() -> io::Result<Paced> + Send,
        act: impl Fn(&mut Self) -> io::Result<()>,
    ) -> io::Result<Paced> {
        thread::scope(|scope| {
            let running = scope.spawn(load);
            // Not while the load still connects.
            thread::sleep(EVERY / 2);
            while !running.is_finished() {
                let began = Instant::now();
                act(self)?;
                thread::sleep(EVERY.saturating_sub(began.elapsed()));
            }
            running
                .join()
                .map_err(|_| io::Error::other("the load panicked"))?
        })
    }

    /// Puts a file that differs from all before it there.
    fn put(&mut self, at: &Path) -> io::Result<()> {
        self.text.push('#');
        let fresh = at.with_extension("fresh");
        fs::write(&fresh, &self.text)?;
        fs::rename(fresh, at)
    }

    /// All that [`Self::reload`] does but the reload.
    fn write(&mut self) -> io::Result<()> {
        self.put(&self.gateway.file.with_extension("beside"))?;
        let began = Instant::now();
        while began.elapsed() < LIVE {
            self.version()?;
            thread::sleep(ASKS);
        }
        Ok(())
    }

    /// Puts a file in place, says so, and waits until it is live.
    fn reload(&mut self) -> io::Result<()> {
        let before = self.version()?;
        self.put(&self.gateway.file)?;
        let began = Instant::now();
        signal(Signal::HUP, self.gateway.process.id());
        while self.version()? == before {
            if began.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other("the new file is not live after 10 s"));
            }
            thread::sleep(ASKS);
        }
        self.to_live_ms.push(began.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    /// The version that is live.
    fn version(&mut self) -> io::Result<u64> {
        let answer = self
            .admin
            .ask("GET", "/config/status", &[], "")?
            .expect(200)?;
        Ok(answer.json()["version"].as_u64().unwrap_or(0))
    }
}
