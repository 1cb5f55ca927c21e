//! Interleaved rounds: every peer gets the same load in turn, so that whatever drifts drifts for
//! all.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::figure::{Bound, Figure, short};
use crate::host::Strangers;
use crate::http;
use crate::load::Wrk;
use crate::process::Process;
use crate::report::{Sheet, median, progress, ranged, spread};

/// One server under test.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
}

/// The rounds of one peer.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// CPU microseconds per request.
    pub(crate) cpu_us: Vec<f64>,
    pub(crate) per_second: Vec<f64>,
    pub(crate) p99_ms: Vec<f64>,
    pub(crate) failed: u64,
    pub(crate) resident_kib: u64,
    /// The share of a core that strangers took during each round, in per cent.
    pub(crate) strangers: Vec<f64>,
}

/// What every request asks, and what the right answer is.
pub(crate) struct Question<'a> {
    pub(crate) path: &'a str,
    pub(crate) token: &'a str,
    pub(crate) body: &'a str,
}

impl Question<'_> {
    /// The request, as it goes over the wire.
    pub(crate) fn request(&self, address: SocketAddr) -> String {
        let Self { path, token, .. } = self;
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n")
    }

    /// Asks once, looks whether the answer is right, and tells how long it is.
    pub(crate) fn answer_bytes(&self, name: &str, address: SocketAddr) -> io::Result<usize> {
        let bearer = format!("Bearer {}", self.token);
        let answer = http::once(address, "GET", self.path, &[("Authorization", &bearer)], "")?
            .expect(200)?;
        if answer.body != self.body.as_bytes() {
            return Err(io::Error::other(format!("{name}: the answer is wrong")));
        }
        Ok(answer.bytes)
    }
}

/// Measures all peers in turn, `rounds` times, after a warm-up of a second each.
pub(crate) fn measure(
    bench: &Bench,
    title: &str,
    peers: &[Peer],
    question: &Question<'_>,
    load: &Wrk,
    rounds: usize,
) -> io::Result<Vec<Row>> {
    let mut rows: Vec<Row> = peers.iter().map(|peer| Row::new(peer.name)).collect();
    for round in 1..=rounds {
        for (peer, row) in peers.iter().zip(&mut rows) {
            progress(&format!(
                "{title}: round {round} of {rounds}: {}",
                peer.name
            ));
            let answer_bytes = question.answer_bytes(peer.name, peer.address)?;
            load.lasting(1)
                .run(bench.folder(), peer.address, question.path)?;
            let (strangers, before) = (Strangers::watch()?, peer.process.cpu_ns()?);
            let seen = load.run(bench.folder(), peer.address, question.path)?;
            let spent = peer.process.cpu_ns()?.saturating_sub(before);
            row.strangers.push(strangers.percent()?);
            let seen = seen.hold_to(answer_bytes, load.connections);
            row.cpu_us
                .push(spent as f64 / 1000.0 / seen.requests.max(1) as f64);
            row.per_second.push(seen.per_second);
            row.p99_ms.push(seen.p99_us / 1000.0);
            row.failed += seen.failed;
            row.resident_kib = peer.process.resident_kib()?;
        }
    }
    progress("");
    Ok(rows)
}

impl Row {
    fn new(name: &'static str) -> Self {
        let none = Vec::new;
        Self {
            name,
            cpu_us: none(),
            per_second: none(),
            p99_ms: none(),
            failed: 0,
            resident_kib: 0,
            strangers: none(),
        }
    }

    /// The median of its costs.
    pub(crate) fn cost(&self) -> f64 {
        median(&self.cpu_us)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "cpuUs": self.cpu_us, "perSecond": self.per_second, "p99Ms": self.p99_ms,
            "failed": self.failed, "residentKib": self.resident_kib, "strangersPercent": self.strangers,
        })
    }
}

/// What one thing took over what another did, round by round.
pub(crate) fn paired(of: &[f64], over: &[f64]) -> Vec<f64> {
    of.iter().zip(over).map(|(of, over)| of / over).collect()
}

/// From the least to the most: what stands beside a median.
pub(crate) fn range(values: &[f64]) -> String {
    let (least, _, most) = spread(values);
    format!("{} to {}", short(least), short(most))
}

/// A number against its bound. If requests failed in the runs behind it, it was not measured.
pub(crate) fn figure(what: &str, bound: Bound, value: f64, unit: &str, failed: u64) -> Figure {
    if failed == 0 {
        return Figure::number(what, bound, value, unit);
    }
    Figure::number(what, bound, f64::NAN, unit).noting(&format!("{failed} requests failed"))
}

/// Every round, as JSON.
pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

/// The rows as a table; the first row is the base of the ratios.
pub(crate) fn sheet(title: &str, rows: &[Row]) -> Sheet {
    let base = rows.first().map_or(f64::NAN, Row::cost);
    let line = |row: &Row| {
        let (least, middle, most) = spread(&row.cpu_us);
        vec![
            row.name.to_owned(),
            format!("**{middle:.1}** ({least:.1} to {most:.1})"),
            format!("{:.2}", middle / base),
            ranged(&row.per_second),
            ranged(&row.p99_ms),
            row.failed.to_string(),
            format!("{:.1} MiB", row.resident_kib as f64 / 1024.0),
            format!("{:.0} %", median(&row.strangers)),
        ]
    };
    Sheet {
        title: title.to_owned(),
        columns: vec![
            "peer",
            "CPU per request, µs: median (min to max)",
            "ratio",
            "requests/s",
            "p99, ms",
            "failed",
            "resident",
            "strangers' CPU",
        ],
        rows: rows.iter().map(line).collect(),
    }
}
