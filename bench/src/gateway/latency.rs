use std::io;

use serde_json::{Value, json};

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure, short};
use crate::host::ForeignCpuMonitor;
use crate::load::{LoadPace, PERCENTILES, PacedResult, WrkLoad, headers_script, oha};
use crate::peers::{self, ORIGIN_RESPONSE, PeerRelease, PosternSetup, REQUEST_PATH};
use crate::plot::{ChartAxis, ChartLine, LineChart};
use crate::report::{BenchReport, ReportTable, median, progress, ranged};
use crate::rounds::{self, BenchPeer, LoadRequest};

/// Fractions of the saturation rate at which cost is measured.
const LOAD_FRACTIONS: [f64; 4] = [0.1, 0.25, 0.5, 0.75];

/// Fraction of the saturation rate at which latency is compared with the target.
const TARGET_FRACTION: f64 = 0.5;

/// Number of turns per peer and round at that fraction, and seconds per turn. A periodic pause of
/// the machine every few seconds is part of the tail of every long turn, but of few short ones.
const TURNS_PER_ROUND: usize = 15;
const TURN_SECONDS: u32 = 2;

/// Runs of which the saturation rate is the median.
const SATURATION_RUNS: usize = 3;

/// Last percentile of the latency chart.
const LAST_CHART_PERCENTILE: f64 = 99.9;

const FIGURE: &str = "p99.9 at half of the saturation rate, open loop, corrected: over nginx";

/// The result of one peer at one rate in one turn.
struct LatencyPoint {
    per_second: u32,
    cpu_us: f64,
    seen: PacedResult,
}

/// All turns of one peer at one rate.
type PeerRounds = Vec<LatencyPoint>;

/// Starts nginx, the empty pass-through and the gateway.
fn start_peers(bench: &BenchRun, origin: &OriginServer) -> io::Result<[BenchPeer; 3]> {
    let gateway = PosternSetup::default().start(bench, origin)?;
    Ok([
        peers::nginx_proxy(bench, PeerRelease::System, origin.address)?,
        peers::passthrough(bench, origin.address)?,
        gateway.into_peer("Postern, all on"),
    ])
}

/// Measures cost and latency by load, open loop. All peers get the same rates: fractions of the
/// gateway's saturation rate.
pub(super) fn paced(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let peers = start_peers(bench, origin)?;
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &token,
        body: ORIGIN_RESPONSE,
    };
    let floods = saturate(bench, &peers[2], &question)?;
    let pace = |share: f64| LoadPace {
        per_second: (median(&floods) * share) as u32,
        seconds: bench.pick(3, 10),
    };
    let ours = |peer: &BenchPeer, pace| PacedResult::run(peer.name, peer.address, &question, pace);
    let theirs = |peer: &BenchPeer, pace| oha(&bench.oha(), peer.address, &question, pace);
    let mut points: Vec<Vec<PeerRounds>> = peers
        .iter()
        .map(|_| LOAD_FRACTIONS.iter().map(|_| Vec::new()).collect())
        .collect();
    let mut by_oha: Vec<Vec<PeerRounds>> = peers.iter().map(|_| vec![Vec::new()]).collect();
    let (rounds, foreign_cpu) = (bench.pick(3, 5), ForeignCpuMonitor::watch()?);
    for round in 1..=rounds {
        for (at, share) in LOAD_FRACTIONS.iter().enumerate() {
            let LoadPace {
                per_second,
                seconds,
            } = pace(*share);
            progress(&format!(
                "latency: round {round} of {rounds}: {per_second}/s"
            ));
            let (turns, seconds) = if at == target_index() {
                (bench.pick(5, TURNS_PER_ROUND), TURN_SECONDS)
            } else {
                (1, seconds)
            };
            for _ in 0..turns {
                let pace = LoadPace {
                    per_second,
                    seconds,
                };
                turn(&peers, &mut points, at, pace, ours)?;
            }
        }
        if bench.oha().exists() {
            progress(&format!("latency: round {round} of {rounds}: oha"));
            turn(&peers, &mut by_oha, 0, pace(TARGET_FRACTION), theirs)?;
        }
    }
    progress("");
    let title = format!(
        "Cost and latency by load, open loop: median (min to max) (other processes used {:.0} % of a core)",
        foreign_cpu.percent()?
    );
    report.sheets.push(sheet(title, &peers, &points));
    if bench.oha().exists() {
        report.sheets.push(sheet(
            "Half of the saturation rate, asked by oha".to_owned(),
            &peers,
            &by_oha,
        ));
    }
    report.rounds["paced"] = json!({
        "saturationPerSecond": floods, "peers": rounds_json(&peers, &points), "byOha": rounds_json(&peers, &by_oha),
    });
    plots(&peers, &points, report);
    let [nginx, _, postern] = [0, 1, 2].map(|peer| PeerTail {
        paced: &points[peer][target_index()],
        oha: &by_oha[peer][0],
    });
    report.figures.push(tail(&postern, &nginx));
    Ok(())
}

/// The turns of one peer at the fraction that is compared with the target.
struct PeerTail<'a> {
    /// Measured by the generator of this crate.
    paced: &'a PeerRounds,
    /// Measured by oha; empty if it is not installed.
    oha: &'a PeerRounds,
}

/// Runs each peer once.
fn turn(
    peers: &[BenchPeer],
    points: &mut [Vec<PeerRounds>],
    at: usize,
    pace: LoadPace,
    load: impl Fn(&BenchPeer, LoadPace) -> io::Result<PacedResult>,
) -> io::Result<()> {
    for (peer, points) in peers.iter().zip(points) {
        let before = peer.process.cpu_ns()?;
        let seen = load(peer, pace)?;
        let spent = peer.process.cpu_ns()?.saturating_sub(before) as f64 / 1e3;
        let cpu_us = spent / seen.requests.max(1) as f64;
        points[at].push(LatencyPoint {
            per_second: pace.per_second,
            cpu_us,
            seen,
        });
    }
    Ok(())
}

/// Measures the saturation rate of a peer, run by run.
pub(super) fn saturate(
    bench: &BenchRun,
    peer: &BenchPeer,
    question: &LoadRequest<'_>,
) -> io::Result<Vec<f64>> {
    let answer_bytes = question.answer_bytes(peer.name, peer.address)?;
    let bearer = format!("Bearer {}", question.token);
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let flood = WrkLoad {
        connections: 64,
        seconds: 2,
        script,
    };
    let mut rates = Vec::new();
    for run in 1..=SATURATION_RUNS {
        progress(&format!(
            "latency: saturation, run {run} of {SATURATION_RUNS}"
        ));
        let seen = flood.run(bench.folder(), peer.address, question.path)?;
        let seen = seen.hold_to(answer_bytes, flood.connections);
        if seen.failed > 0 {
            return Err(io::Error::other(format!(
                "{} requests failed at saturation",
                seen.failed
            )));
        }
        rates.push(seen.per_second);
    }
    Ok(rates)
}

/// Returns the index of the fraction that is compared with the target.
fn target_index() -> usize {
    LOAD_FRACTIONS
        .iter()
        .position(|share| (share - TARGET_FRACTION).abs() < 1e-9)
        .unwrap_or(0)
}

fn costs(rounds: &[LatencyPoint]) -> Vec<f64> {
    rounds.iter().map(|point| point.cpu_us).collect()
}

/// Returns a percentile, turn by turn.
fn percentiles(rounds: &[LatencyPoint], percentile: f64) -> Vec<f64> {
    rounds
        .iter()
        .map(|point| point.seen.at(percentile))
        .collect()
}

/// Returns whether the rate was achieved in every turn; otherwise no percentiles are shown.
fn is_rate_achieved(rounds: &[LatencyPoint]) -> bool {
    rounds.iter().all(|point| point.seen.is_rate_achieved())
}

/// Returns the lowest achieved fraction of the requested rate.
fn achieved(rounds: &[LatencyPoint]) -> f64 {
    rounds
        .iter()
        .map(|point| point.seen.achieved())
        .fold(f64::INFINITY, f64::min)
}

fn failed(rounds: &[LatencyPoint]) -> u64 {
    rounds.iter().map(|point| point.seen.failed).sum()
}

fn rounds_json(peers: &[BenchPeer], points: &[Vec<PeerRounds>]) -> Value {
    let round = |point: &LatencyPoint| json!({"cpuUs": point.cpu_us, "seen": point.seen.json()});
    let rate = |rounds: &PeerRounds| {
        let per_second = rounds.first().map_or(0, |point| point.per_second);
        json!({"perSecond": per_second, "rounds": rounds.iter().map(round).collect::<Value>()})
    };
    let rates = points
        .iter()
        .map(|shares| shares.iter().map(rate).collect::<Value>());
    peers
        .iter()
        .zip(rates)
        .map(|(peer, rates)| json!({"name": peer.name, "rates": rates}))
        .collect()
}

fn sheet(title: String, peers: &[BenchPeer], points: &[Vec<PeerRounds>]) -> ReportTable {
    let line = |peer: &BenchPeer, rounds: &PeerRounds| {
        let in_time = is_rate_achieved(rounds);
        let mut row = vec![
            peer.name.to_owned(),
            rounds
                .first()
                .map_or(0, |point| point.per_second)
                .to_string(),
            format!(
                "{:.2} %{}",
                achieved(rounds) * 100.0,
                if in_time { "" } else { ": not kept" }
            ),
            ranged(&costs(rounds)),
        ];
        let cell = |at| {
            if in_time {
                ranged(&percentiles(rounds, at))
            } else {
                "–".to_owned()
            }
        };
        row.extend([50.0, 99.0, 99.9].map(cell));
        row.push(failed(rounds).to_string());
        row
    };
    let rows = peers
        .iter()
        .zip(points)
        .flat_map(|(peer, shares)| shares.iter().map(move |at| line(peer, at)));
    ReportTable {
        title,
        columns: vec![
            "peer",
            "requests/s",
            "achieved at least",
            "CPU per request, µs",
            "p50, ms",
            "p99, ms",
            "p99.9, ms",
            "failed",
        ],
        rows: rows.collect(),
    }
}

/// Returns the figure of the gateway's tail relative to nginx's, with oha's result as a note. Not
/// measured if one of them, or the generator, did not achieve the rate.
fn tail(postern: &PeerTail<'_>, nginx: &PeerTail<'_>) -> TargetFigure {
    let (by_oha, nginx_by_oha) = (postern.oha, nginx.oha);
    let (postern, nginx) = (postern.paced, nginx.paced);
    let bound = Bound::AtMost(1.2);
    if !(is_rate_achieved(postern) && is_rate_achieved(nginx)) {
        let least = achieved(postern).min(achieved(nginx)) * 100.0;
        let figure = TargetFigure::number(FIGURE, bound, f64::NAN, " ×");
        return figure.noting(&format!("a run achieved only {least:.1} % of its rate"));
    }
    let ratio = |one: &PeerRounds, other: &PeerRounds| {
        let (ours, base) = (percentiles(one, 99.9), percentiles(other, 99.9));
        (
            median(&ours) / median(&base),
            format!("{} ms against {} ms", ranged(&ours), ranged(&base)),
        )
    };
    let (over, mut note) = ratio(postern, nginx);
    if !by_oha.is_empty() {
        let (by_oha, seen) = ratio(by_oha, nginx_by_oha);
        note.push_str(&format!("; asked by oha {} ×, {seen}", short(by_oha)));
    }
    rounds::figure(FIGURE, bound, over, " ×", failed(postern) + failed(nginx)).noting(&note)
}

fn plots(peers: &[BenchPeer], points: &[Vec<PeerRounds>], report: &mut BenchReport) {
    let (mut by_rate, mut by_share) = (Vec::new(), Vec::new());
    for (peer, shares) in peers.iter().zip(points) {
        let line = |points| ChartLine {
            name: peer.name.to_owned(),
            points,
        };
        let rate = |rounds: &PeerRounds| {
            let rates = rounds
                .iter()
                .map(|point| f64::from(point.per_second) * point.seen.achieved());
            median(&rates.collect::<Vec<_>>())
        };
        by_rate.push(line(
            shares
                .iter()
                .map(|rounds| (rate(rounds), median(&costs(rounds))))
                .collect(),
        ));
        let rounds = &shares[target_index()];
        if is_rate_achieved(rounds) {
            by_share.push(line(
                PERCENTILES
                    .iter()
                    .take_while(|at| **at <= LAST_CHART_PERCENTILE)
                    .map(|at| (nines(*at), median(&percentiles(rounds, *at))))
                    .collect(),
            ));
        }
    }
    charts(by_rate, by_share, report);
}

/// Returns a chart position of a percentile, linear in its number of nines.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

fn charts(costs: Vec<ChartLine>, latencies: Vec<ChartLine>, report: &mut BenchReport) {
    report.plots.push(LineChart {
        name: "cost-by-load",
        title: "CPU per request by load",
        x: ChartAxis::linear("requests per second"),
        y: ChartAxis::linear("CPU per request, µs"),
        lines: costs,
    });
    let marks = [
        (50.0, "50 %"),
        (90.0, "90 %"),
        (99.0, "99 %"),
        (99.9, "99.9 %"),
    ];
    let marks = marks.map(|(at, text)| (nines(at), text.to_owned()));
    report.plots.push(LineChart {
        name: "latency",
        title: "Latency at half of the saturation rate, corrected for coordinated omission",
        x: ChartAxis {
            label: "percentile",
            logarithmic: false,
            marks: marks.to_vec(),
        },
        y: ChartAxis {
            label: "milliseconds",
            logarithmic: true,
            marks: Vec::new(),
        },
        lines: latencies,
    });
}
