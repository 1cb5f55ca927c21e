use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure};
use crate::http;
use crate::load::{LoadPace, PacedResult};
use crate::peers::{ORIGIN_RESPONSE, PosternSetup, REQUEST_PATH, RunningGateway};
use crate::process::signal;
use crate::report::{BenchReport, median, progress, ranged};
use crate::rounds::{self, LoadRequest, paired, range};

/// Interval between reloads during the load. Latencies are evaluated per second with one reload
/// each, so that a stall of 10 ms affects one request in a hundred.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the operator polls whether the file is live.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Time for which the operator polls in runs without a reload: about the time of a reload.
const IDLE_POLL_DURATION: Duration = Duration::from_millis(50);

/// Requests per second, open loop: a fraction of the gateway's capacity, so that cores are free for
/// reading the file.
const REQUESTS_PER_SECOND: u32 = 5_000;

/// The runs in pairs: one without a reload, one with a reload every [`RELOAD_INTERVAL`].
#[derive(Default)]
struct PairedRuns {
    still: Vec<PacedResult>,
    disturbed: Vec<PacedResult>,
}

/// Writes files and polls the admin listener during a load, in both runs of a pair, which differ
/// only in the reload.
struct ReloadOperator<'a> {
    gateway: &'a RunningGateway,
    admin: http::HttpClient,
    text: String,
    to_live_ms: Vec<f64>,
}

/// Measures reloads of a file with ten thousand routes under load.
pub(super) fn ten_thousand_routes(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let large = PosternSetup {
        routes: 10_000,
        ..PosternSetup::default()
    };
    let gateway = large.start(bench, origin)?;
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &token,
        body: ORIGIN_RESPONSE,
    };
    let load = || {
        PacedResult::run(
            "Postern",
            gateway.address,
            &question,
            LoadPace {
                per_second: REQUESTS_PER_SECOND,
                seconds: 3,
            },
        )
    };
    let rounds = bench.pick(5, 30);
    let (mut runs, mut operator) = (PairedRuns::default(), ReloadOperator::new(&gateway)?);
    for round in 1..=rounds {
        progress(&format!("reload: round {round} of {rounds}"));
        runs.still
            .push(operator.beside(load, ReloadOperator::write)?);
        runs.disturbed
            .push(operator.beside(load, ReloadOperator::reload)?);
    }
    progress("");
    runs.tell(&operator.to_live_ms, report);
    Ok(())
}

fn loaded(what: &str) -> String {
    format!("reload of a 10,000-route file: {what}")
}

impl PairedRuns {
    fn tell(&self, to_live_ms: &[f64], report: &mut BenchReport) {
        let all = || self.still.iter().chain(&self.disturbed);
        let failed: u64 = all().map(|seen| seen.failed).sum();
        let p99 = |runs: &[PacedResult]| runs.iter().map(|seen| seen.at(99.0)).collect::<Vec<_>>();
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
        figures.push(TargetFigure::number(
            &loaded("failed requests"),
            bound,
            failed as f64,
            "",
        ));
        let in_time = all().all(PacedResult::is_rate_achieved);
        let step = if in_time { median(&steps) } else { f64::NAN };
        let mut note = format!(
            "by pairs, {}; {} ms against {} ms",
            range(&steps),
            ranged(&disturbed),
            ranged(&still)
        );
        if !in_time {
            let least = all()
                .map(PacedResult::achieved)
                .fold(f64::INFINITY, f64::min)
                * 100.0;
            note = format!("a run achieved only {least:.1} % of its rate; {note}");
        }
        let what = loaded("p99 with a reload every second over that of a run without one");
        figures.push(rounds::figure(&what, Bound::AtMost(1.2), step, " ×", failed).noting(&note));
        let json = |runs: &[PacedResult]| runs.iter().map(PacedResult::json).collect::<Value>();
        report.rounds["reload"] = json!({
            "toLiveMs": to_live_ms, "p99Ms": disturbed, "p99MsWithout": still,
            "seen": json(&self.disturbed), "seenWithout": json(&self.still),
        });
    }
}

impl<'a> ReloadOperator<'a> {
    fn new(gateway: &'a RunningGateway) -> io::Result<Self> {
        let text = fs::read_to_string(&gateway.file)?;
        let admin = http::HttpClient::connect(gateway.admin)?;
        Ok(Self {
            gateway,
            admin,
            text,
            to_live_ms: Vec::new(),
        })
    }

    /// Runs the load, and calls `action` every [`RELOAD_INTERVAL`] meanwhile.
    fn beside(
        &mut self,
        load: impl FnOnce() -> io::Result<PacedResult> + Send,
        act: impl Fn(&mut Self) -> io::Result<()>,
    ) -> io::Result<PacedResult> {
        thread::scope(|scope| {
            let running = scope.spawn(load);
            // The load needs time to connect.
            thread::sleep(RELOAD_INTERVAL / 2);
            while !running.is_finished() {
                let began = Instant::now();
                act(self)?;
                thread::sleep(RELOAD_INTERVAL.saturating_sub(began.elapsed()));
            }
            running
                .join()
                .map_err(|_| io::Error::other("the load thread panicked"))?
        })
    }

    /// Writes a file that differs from all earlier ones.
    fn put(&mut self, at: &Path) -> io::Result<()> {
        self.text.push('#');
        let fresh = at.with_extension("fresh");
        fs::write(&fresh, &self.text)?;
        fs::rename(fresh, at)
    }

    /// Does what [`Self::reload`] does, without the reload.
    fn write(&mut self) -> io::Result<()> {
        self.put(&self.gateway.file.with_extension("beside"))?;
        let began = Instant::now();
        while began.elapsed() < IDLE_POLL_DURATION {
            self.version()?;
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Replaces the file, signals the gateway, and waits until it is live.
    fn reload(&mut self) -> io::Result<()> {
        let before = self.version()?;
        self.put(&self.gateway.file)?;
        let began = Instant::now();
        signal(Signal::HUP, self.gateway.process.id());
        while self.version()? == before {
            if began.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other("the new file is not live after 10 s"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.to_live_ms.push(began.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    /// Returns the version of the live configuration.
    fn version(&mut self) -> io::Result<u64> {
        let answer = self
            .admin
            .ask("GET", "/config/status", &[], "")?
            .expect(200)?;
        Ok(answer.json()["version"].as_u64().unwrap_or(0))
    }
}
