use std::io;

use serde_json::{Value, json};

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure, short};
use crate::host::Strangers;
use crate::load::{Paced, Wrk, headers_script, oha};
use crate::peers::{self, ANSWER, PATH, Postern};
use crate::plot::{Axis, Line, Plot};
use crate::process::free_address;
use crate::report::{Report, Sheet, median, progress, ranged};
use crate::rounds::{self, Peer, Question};

/// Shares of the saturation rate at which cost is taken.
const SHARES: [f64; 4] = [0.1, 0.25, 0.5, 0.75];

/// The share at which latency is judged.
const JUDGED: f64 = 0.5;

/// So often each peer takes its turn at that share in a round, and so many seconds. A tail is what
/// is rare, and moves more than all else: a pause of the machine's own every few seconds is the
/// tail of every long turn, but of few short ones.
const TURNS: usize = 15;
const TURN: u32 = 2;

/// Runs of which the saturation rate is the median.
const FLOODS: usize = 3;

const FIGURE: &str = "p99.9 at half of the saturation rate, open loop, corrected: over nginx";

/// One peer at one rate, once.
struct Point {
    per_second: u32,
    cpu_us: f64,
    seen: Paced,
}

/// All rounds of one peer at one rate.
type Rounds = Vec<Point>;

/// Cost and latency by load, open loop. The rates are the same for all: shares of what the gateway
/// can do at most.
pub(super) fn paced(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let (nginx, empty) = (free_address()?, free_address()?);
    let gateway = Postern::default().start(bench, origin)?;
    let peers = [
        Peer {
            name: "nginx, no auth",
            address: nginx,
            process: peers::nginx_proxy(bench.folder(), nginx, origin.address)?,
        },
        Peer {
            name: "Pingora, empty",
            address: empty,
            process: peers::passthrough(empty, origin.address)?,
        },
        Peer {
            name: "Postern, all on",
            address: gateway.address,
            process: gateway.process,
        },
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question {
        path: PATH,
        token: &token,
        body: ANSWER,
    };
    let floods = saturate(bench, &peers[2], &question)?;
    let pace = |share: f64| ((median(&floods) * share) as u32, bench.pick(3, 10));
    let ours = |peer: &Peer, pace| Paced::run(peer.name, peer.address, &question, pace);
    let theirs = |peer: &Peer, pace| oha(&bench.oha(), peer.address, &question, pace);
    let mut points: Vec<Vec<Rounds>> = peers
        .iter()
        .map(|_| SHARES.iter().map(|_| Vec::new()).collect())
        .collect();
    let mut by_oha: Vec<Vec<Rounds>> = peers.iter().map(|_| vec![Vec::new()]).collect();
    let (rounds, strangers) = (bench.pick(3, 5), Strangers::watch()?);
    for round in 1..=rounds {
        for (at, share) in SHARES.iter().enumerate() {
            let (per_second, seconds) = pace(*share);
            progress(&format!(
                "latency: round {round} of {rounds}: {per_second}/s"
            ));
            let (turns, seconds) = if at == judged() {
                (bench.pick(5, TURNS), TURN)
            } else {
                (1, seconds)
            };
            for _ in 0..turns {
                turn(&peers, &mut points, at, (per_second, seconds), ours)?;
            }
        }
        if bench.oha().exists() {
            progress(&format!("latency: round {round} of {rounds}: oha"));
            turn(&peers, &mut by_oha, 0, pace(JUDGED), theirs)?;
        }
    }
    progress("");
    let title = format!(
        "Cost and latency by load, open loop: median (min to max) (strangers took {:.0} % of a core)",
        strangers.percent()?
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
    let [nginx, _, postern] = [0, 1, 2].map(|peer| (&points[peer][judged()], &by_oha[peer][0]));
    report.figures.push(tail(postern, nginx));
    Ok(())
}

/// One run of each peer.
fn turn(
    peers: &[Peer],
    points: &mut [Vec<Rounds>],
    at: usize,
    pace: (u32, u32),
    load: impl Fn(&Peer, (u32, u32)) -> io::Result<Paced>,
) -> io::Result<()> {
    for (peer, points) in peers.iter().zip(points) {
        let before = peer.process.cpu_ns()?;
        let seen = load(peer, pace)?;
        let spent = peer.process.cpu_ns()?.saturating_sub(before) as f64 / 1e3;
        let cpu_us = spent / seen.requests.max(1) as f64;
        points[at].push(Point {
            per_second: pace.0,
            cpu_us,
            seen,
        });
    }
    Ok(())
}

/// What a peer can do at most, run by run.
fn saturate(bench: &Bench, peer: &Peer, question: &Question<'_>) -> io::Result<Vec<f64>> {
    let answer_bytes = question.answer_bytes(peer.name, peer.address)?;
    let bearer = format!("Bearer {}", question.token);
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let flood = Wrk {
        connections: 64,
        seconds: 2,
        script,
    };
    let mut rates = Vec::new();
    for run in 1..=FLOODS {
        progress(&format!("latency: saturation, run {run} of {FLOODS}"));
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

/// Where the share that is judged stands.
fn judged() -> usize {
    SHARES
        .iter()
        .position(|share| (share - JUDGED).abs() < 1e-9)
        .unwrap_or(0)
}

fn costs(rounds: &[Point]) -> Vec<f64> {
    rounds.iter().map(|point| point.cpu_us).collect()
}

/// A percentile, round by round.
fn percentiles(rounds: &[Point], percentile: f64) -> Vec<f64> {
    rounds
        .iter()
        .map(|point| point.seen.at(percentile))
        .collect()
}

/// Percentiles stand only where the rate was kept in every round.
fn is_in_time(rounds: &[Point]) -> bool {
    rounds.iter().all(|point| point.seen.is_in_time())
}

/// The least share of the asked rate that was achieved.
fn achieved(rounds: &[Point]) -> f64 {
    rounds
        .iter()
        .map(|point| point.seen.achieved())
        .fold(f64::INFINITY, f64::min)
}

fn failed(rounds: &[Point]) -> u64 {
    rounds.iter().map(|point| point.seen.failed).sum()
}

fn rounds_json(peers: &[Peer], points: &[Vec<Rounds>]) -> Value {
    let round = |point: &Point| json!({"cpuUs": point.cpu_us, "seen": point.seen.json()});
    let rate = |rounds: &Rounds| {
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

fn sheet(title: String, peers: &[Peer], points: &[Vec<Rounds>]) -> Sheet {
    let line = |peer: &Peer, rounds: &Rounds| {
        let in_time = is_in_time(rounds);
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
    Sheet {
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

/// The tail of the gateway over that of nginx, and what oha says of it; not measured where one of
/// them, or the generator, did not keep the rate.
fn tail(
    (postern, by_oha): (&Rounds, &Rounds),
    (nginx, nginx_by_oha): (&Rounds, &Rounds),
) -> Figure {
    let bound = Bound::AtMost(1.2);
    if !(is_in_time(postern) && is_in_time(nginx)) {
        let least = achieved(postern).min(achieved(nginx)) * 100.0;
        let figure = Figure::number(FIGURE, bound, f64::NAN, " ×");
        return figure.noting(&format!("a run achieved only {least:.1} % of its rate"));
    }
    let ratio = |one: &Rounds, other: &Rounds| {
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

fn plots(peers: &[Peer], points: &[Vec<Rounds>], report: &mut Report) {
    let (mut by_rate, mut by_share) = (Vec::new(), Vec::new());
    for (peer, shares) in peers.iter().zip(points) {
        let line = |points| Line {
            name: peer.name.to_owned(),
            points,
        };
        let rate = |rounds: &Rounds| {
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
        let rounds = &shares[judged()];
        if is_in_time(rounds) {
            let told = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
            by_share.push(line(
                told.map(|at| (nines(at), median(&percentiles(rounds, at))))
                    .to_vec(),
            ));
        }
    }
    charts(by_rate, by_share, report);
}

/// Percentiles as far apart as their nines.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

fn charts(costs: Vec<Line>, latencies: Vec<Line>, report: &mut Report) {
    report.plots.push(Plot {
        name: "cost-by-load",
        title: "CPU per request by load",
        x: Axis::linear("requests per second"),
        y: Axis::linear("CPU per request, µs"),
        lines: costs,
    });
    let marks = [
        (50.0, "50 %"),
        (90.0, "90 %"),
        (99.0, "99 %"),
        (99.9, "99.9 %"),
    ];
    let marks = marks.map(|(at, text)| (nines(at), text.to_owned()));
    report.plots.push(Plot {
        name: "latency",
        title: "Latency at half of the saturation rate, corrected for coordinated omission",
        x: Axis {
            label: "percentile",
            logarithmic: false,
            marks: marks.to_vec(),
        },
        y: Axis {
            label: "milliseconds",
            logarithmic: true,
            marks: Vec::new(),
        },
        lines: latencies,
    });
}
