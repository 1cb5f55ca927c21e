//! Interleaved rounds: every peer gets the same load in turn, so that drift of the machine affects
//! all peers alike.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::bench::BenchRun;
use crate::figure::{Bound, TargetFigure, short};
use crate::host::ForeignCpuMonitor;
use crate::http;
use crate::load::{LoadResult, WrkLoad};
use crate::process::ChildProcess;
use crate::report::{ReportTable, median, progress, ranged, spread};

/// A server under test.
pub(crate) struct BenchPeer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// Listener with TLS, HTTP/1.1 and HTTP/2.
    pub(crate) tls: SocketAddr,
    pub(crate) process: ChildProcess,
}

/// The rounds of one peer.
pub(crate) struct PeerRow {
    pub(crate) name: &'static str,
    /// CPU microseconds per request.
    pub(crate) cpu_us: Vec<f64>,
    pub(crate) per_second: Vec<f64>,
    /// Empty if the generator reports no latencies.
    pub(crate) p99_ms: Vec<f64>,
    pub(crate) failed: u64,
    pub(crate) resident_kib: u64,
    /// CPU used by other processes during each round, in percent of one core.
    pub(crate) foreign_cpu: Vec<f64>,
}

/// The request of a load, and its correct response.
pub(crate) struct LoadRequest<'a> {
    pub(crate) path: &'a str,
    pub(crate) token: &'a str,
    pub(crate) body: &'a str,
}

impl LoadRequest<'_> {
    /// Returns the request as sent.
    pub(crate) fn request(&self, address: SocketAddr) -> String {
        let Self { path, token, .. } = self;
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n")
    }

    /// Sends one request, checks the response, and returns its size in bytes.
    pub(crate) fn answer_bytes(&self, name: &str, address: SocketAddr) -> io::Result<usize> {
        let bearer = format!("Bearer {}", self.token);
        let answer = http::once(address, "GET", self.path, &[("Authorization", &bearer)], "")?
            .expect(200)?;
        if answer.body != self.body.as_bytes() {
            return Err(io::Error::other(format!("{name}: the response is wrong")));
        }
        Ok(answer.bytes)
    }
}

/// Measures all peers in turn with `wrk`, `rounds` times, after a warm-up of one second each.
pub(crate) fn measure(
    bench: &BenchRun,
    title: &str,
    peers: &[BenchPeer],
    question: &LoadRequest<'_>,
    load: &WrkLoad,
    rounds: usize,
) -> io::Result<Vec<PeerRow>> {
    interleaved(title, peers, rounds, load.seconds, |peer, seconds| {
        let answer_bytes = question.answer_bytes(peer.name, peer.address)?;
        let load = load.lasting(seconds);
        let seen = load.run(bench.folder(), peer.address, question.path)?;
        Ok(seen.hold_to(answer_bytes, load.connections))
    })
}

/// Measures all peers in turn, `rounds` times. `run` sends the load to a peer for some seconds: one
/// for warming up, then `seconds` while the CPU of the peer is measured.
pub(crate) fn interleaved(
    title: &str,
    peers: &[BenchPeer],
    rounds: usize,
    seconds: u32,
    mut run: impl FnMut(&BenchPeer, u32) -> io::Result<LoadResult>,
) -> io::Result<Vec<PeerRow>> {
    let mut rows: Vec<PeerRow> = peers.iter().map(|peer| PeerRow::new(peer.name)).collect();
    for round in 1..=rounds {
        for (peer, row) in peers.iter().zip(&mut rows) {
            progress(&format!(
                "{title}: round {round} of {rounds}: {}",
                peer.name
            ));
            let named = |error| io::Error::other(format!("{title}: {}: {error}", peer.name));
            run(peer, 1).map_err(named)?;
            let (foreign_cpu, before) = (ForeignCpuMonitor::watch()?, peer.process.cpu_ns()?);
            let seen = run(peer, seconds).map_err(named)?;
            let spent = peer.process.cpu_ns()?.saturating_sub(before);
            row.foreign_cpu.push(foreign_cpu.percent()?);
            row.cpu_us
                .push(spent as f64 / 1000.0 / seen.requests.max(1) as f64);
            row.per_second.push(seen.per_second);
            if seen.p99_us.is_finite() {
                row.p99_ms.push(seen.p99_us / 1000.0);
            }
            row.failed += seen.failed;
            row.resident_kib = peer.process.resident_kib()?;
        }
    }
    progress("");
    Ok(rows)
}

impl PeerRow {
    fn new(name: &'static str) -> Self {
        let none = Vec::new;
        Self {
            name,
            cpu_us: none(),
            per_second: none(),
            p99_ms: none(),
            failed: 0,
            resident_kib: 0,
            foreign_cpu: none(),
        }
    }

    /// Returns the median cost.
    pub(crate) fn cost(&self) -> f64 {
        median(&self.cpu_us)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "cpuUs": self.cpu_us, "perSecond": self.per_second, "p99Ms": self.p99_ms,
            "failed": self.failed, "residentKib": self.resident_kib, "strangersPercent": self.foreign_cpu,
        })
    }
}

/// Returns the ratios of two series, round by round.
pub(crate) fn paired(of: &[f64], over: &[f64]) -> Vec<f64> {
    of.iter().zip(over).map(|(of, over)| of / over).collect()
}

/// Formats minimum and maximum.
pub(crate) fn range(values: &[f64]) -> String {
    let (least, _, most) = spread(values);
    format!("{} to {}", short(least), short(most))
}

/// Returns a figure with its bound. If requests failed in its runs, it is not measured.
pub(crate) fn figure(
    what: &str,
    bound: Bound,
    value: f64,
    unit: &str,
    failed: u64,
) -> TargetFigure {
    if failed == 0 {
        return TargetFigure::number(what, bound, value, unit);
    }
    TargetFigure::number(what, bound, f64::NAN, unit).noting(&format!("{failed} requests failed"))
}

/// Returns the results of every round as JSON.
pub(crate) fn json(rows: &[PeerRow]) -> Value {
    rows.iter().map(PeerRow::json).collect()
}

/// Returns the rows as a table; the first row is the base of the ratios.
pub(crate) fn sheet(title: &str, rows: &[PeerRow]) -> ReportTable {
    let base = rows.first().map_or(f64::NAN, PeerRow::cost);
    let line = |row: &PeerRow| {
        let (least, middle, most) = spread(&row.cpu_us);
        vec![
            row.name.to_owned(),
            format!("**{middle:.1}** ({least:.1} to {most:.1})"),
            format!("{:.2}", middle / base),
            ranged(&row.per_second),
            ranged(&row.p99_ms),
            row.failed.to_string(),
            format!("{:.1} MiB", row.resident_kib as f64 / 1024.0),
            format!("{:.0} %", median(&row.foreign_cpu)),
        ]
    };
    ReportTable {
        title: title.to_owned(),
        columns: vec![
            "peer",
            "CPU per request, µs: median (min to max)",
            "ratio",
            "requests/s",
            "p99, ms",
            "failed",
            "resident",
            "other CPU",
        ],
        rows: rows.iter().map(line).collect(),
    }
}
