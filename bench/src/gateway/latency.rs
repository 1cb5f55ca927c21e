use std::io;

use serde_json::json;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::host::Strangers;
use crate::load::{Paced, Wrk, headers_script, oha};
use crate::peers::{self, PATH, Postern};
use crate::plot::{Axis, Line, Plot};
use crate::process::free_address;
use crate::report::{Report, Sheet, median, progress};
use crate::rounds::Peer;

/// Shares of the saturation rate at which cost is taken.
const SHARES: [f64; 4] = [0.1, 0.25, 0.5, 0.75];

/// The share at which latency is judged.
const JUDGED: f64 = 0.5;

const FIGURE: &str = "p99.9 at half of the saturation rate, open loop, corrected: over nginx";

/// One peer at one rate.
struct Point {
    per_second: u32,
    cpu_us: f64,
    seen: Paced,
}

/// Cost and latency by load, open loop. The rates are the same for all: shares of what the gateway can do at most.
pub(super) fn paced(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    if !bench.oha().exists() {
        report.figures.push(Figure::open(
            FIGURE,
            "at most 1.2 ×",
            "oha is not installed: bench/run does that",
        ));
        return Ok(());
    }
    let (nginx, empty) = (free_address()?, free_address()?);
    let gateway = Postern::default().start(bench, origin)?;
    let peers = [
        Peer {
            name: "nginx, no auth",
            address: nginx,
            process: peers::nginx_proxy(bench.folder(), nginx, origin.address)?,
        },
        Peer { name: "Pingora, empty", address: empty, process: peers::passthrough(empty, origin.address)? },
        Peer { name: "Postern, all on", address: gateway.address, process: gateway.process },
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let flood = Wrk { connections: 64, seconds: 2, script };
    let saturated = flood.run(bench.folder(), gateway.address, PATH)?.per_second;
    let mut points: Vec<Vec<Vec<Point>>> =
        peers.iter().map(|_| SHARES.iter().map(|_| Vec::new()).collect()).collect();
    let (rounds, seconds) = bench.pick((3, 3), (5, 10));
    let strangers = Strangers::watch()?;
    for round in 1..=rounds {
        for (at, share) in SHARES.iter().enumerate() {
            let rate = (saturated * share) as u32;
            for (peer, points) in peers.iter().zip(&mut points) {
                progress(&format!("latency: round {round} of {rounds}: {} at {rate}/s", peer.name));
                let before = peer.process.cpu_ns()?;
                let seen = oha(&bench.oha(), peer.address, PATH, &token, (rate, seconds))?;
                let spent = (peer.process.cpu_ns()? - before) as f64 / 1e3;
                points[at].push(Point {
                    per_second: rate,
                    cpu_us: spent / seen.requests.max(1) as f64,
                    seen,
                });
            }
        }
    }
    progress("");
    tell(&peers, &points, strangers.percent()?, report);
    Ok(())
}

/// The median over the rounds of a percentile.
fn percentile(rounds: &[Point], percentile: f64) -> f64 {
    median(&rounds.iter().map(|point| point.seen.at(percentile)).collect::<Vec<_>>())
}

fn tell(peers: &[Peer], points: &[Vec<Vec<Point>>], strangers: f64, report: &mut Report) {
    let judged = SHARES.iter().position(|share| (share - JUDGED).abs() < 1e-9).unwrap_or(0);
    let mut sheet = Sheet {
        title: format!("Cost and latency by load, open loop (strangers took {strangers:.0} % of a core)"),
        columns: vec![
            "peer",
            "requests/s",
            "CPU per request, µs",
            "p50, ms",
            "p99, ms",
            "p99.9, ms",
            "failed",
        ],
        rows: Vec::new(),
    };
    let (mut costs, mut latencies) = (Vec::new(), Vec::new());
    for (peer, shares) in peers.iter().zip(points) {
        let cost = |rounds: &[Point]| median(&rounds.iter().map(|point| point.cpu_us).collect::<Vec<_>>());
        let rate = |rounds: &[Point]| rounds.first().map_or(0, |point| point.per_second);
        for rounds in shares {
            let failed: u64 = rounds.iter().map(|point| point.seen.failed).sum();
            let mut row =
                vec![peer.name.to_owned(), rate(rounds).to_string(), format!("{:.1}", cost(rounds))];
            row.extend([50.0, 99.0, 99.9].map(|at| format!("{:.2}", percentile(rounds, at))));
            row.push(failed.to_string());
            sheet.rows.push(row);
        }
        let by_rate = shares.iter().map(|rounds| (f64::from(rate(rounds)), cost(rounds))).collect();
        costs.push(Line { name: peer.name.to_owned(), points: by_rate });
        let nines = |at: f64| -(1.0 - at / 100.0).log10();
        let spread = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
        let by_share = spread.map(|at| (nines(at), percentile(&shares[judged], at))).to_vec();
        latencies.push(Line { name: peer.name.to_owned(), points: by_share });
    }
    report.sheets.push(sheet);
    report.rounds["paced"] =
        costs.iter().map(|line| json!({"name": line.name, "costByRate": line.points})).collect();
    plots(costs, latencies, report);
    if let [nginx, _, postern] = points {
        let p999 = |shares: &[Vec<Point>]| percentile(&shares[judged], 99.9);
        let (ours, base) = (p999(postern), p999(nginx));
        let figure = Figure::number(FIGURE, Bound::AtMost(1.2), ours / base, " ×");
        report
            .figures
            .push(figure.noting(&format!("{ours:.2} ms against {base:.2} ms, medians of the rounds")));
    }
}

fn plots(costs: Vec<Line>, latencies: Vec<Line>, report: &mut Report) {
    report.plots.push(Plot {
        name: "cost-by-load",
        title: "CPU per request by load",
        x: Axis::linear("requests per second"),
        y: Axis::linear("CPU per request, µs"),
        lines: costs,
    });
    let marks = [(50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %")];
    let marks = marks.map(|(at, text): (f64, &str)| (-(1.0 - at / 100.0).log10(), text.to_owned()));
    report.plots.push(Plot {
        name: "latency",
        title: "Latency at half of the saturation rate, corrected for coordinated omission",
        x: Axis { label: "percentile", logarithmic: false, marks: marks.to_vec() },
        y: Axis { label: "milliseconds", logarithmic: true, marks: Vec::new() },
        lines: latencies,
    });
}
