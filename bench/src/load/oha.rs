use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::last_json;

/// What a paced run saw. Latencies are counted from when a request was due, not from when a busy generator came to
/// send it, so that a stall of the server is not left out (coordinated omission).
#[derive(Clone, Debug)]
pub(crate) struct Paced {
    /// Requests that were due.
    pub(crate) asked: u64,
    /// Those that were answered with 200.
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    /// Sent, and not answered when the time was over: no failures, and in no percentile. What was due and not even
    /// sent by then oha does not tell: it is what remains of `asked`.
    pub(crate) under_way: u64,
    /// Of all answers together, heads left out.
    body_bytes: u64,
    /// Percentile and milliseconds, ascending.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

/// The share of the requests that must have been answered before the time was over. The others are in no percentile:
/// the more there are of them, the more of its tail a run has not seen.
const IN_TIME: f64 = 0.99;

impl Paced {
    /// Milliseconds at a percentile that oha tells.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let told = self.percentiles.iter().find(|(known, _)| (known - percentile).abs() < 1e-9);
        told.map_or(f64::NAN, |(_, millis)| *millis)
    }

    /// The share of the asked rate that was achieved.
    pub(crate) fn achieved(&self) -> f64 {
        self.requests as f64 / self.asked.max(1) as f64
    }

    /// Whether the rate was kept, by the server and by oha.
    pub(crate) fn is_in_time(&self) -> bool {
        self.achieved() >= IN_TIME
    }

    /// Counts every request as failed if the bodies were not as long as the right one, and a run without any answer
    /// as a failure.
    fn hold_to(mut self, body: &str) -> Self {
        let expected = self.requests * body.len() as u64;
        if self.requests == 0 || (self.failed == 0 && self.body_bytes != expected) {
            self.failed = self.requests.max(1);
        }
        self
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "asked": self.asked, "answered": self.requests, "failed": self.failed, "underWay": self.under_way,
            "percentilesMs": self.percentiles,
        })
    }
}

/// Asks for `path` with `token` so many times a second, for so many seconds, whether answers come or not, and holds
/// the answers to `body`.
pub(crate) fn oha(
    program: &Path,
    address: SocketAddr,
    (path, token): (&str, &str),
    body: &str,
    (per_second, seconds): (u32, u32),
) -> io::Result<Paced> {
    let output = Command::new(program)
        .args(["--no-tui", "--output-format", "json", "--latency-correction", "-c", "64"])
        .args(["-q", &per_second.to_string(), "-z", &format!("{seconds}s")])
        .args(["-H", &format!("Authorization: Bearer {token}")])
        .arg(format!("http://{address}{path}"))
        .output()
        .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
    let said = match serde_json::from_slice(&output.stdout) {
        Ok(said) => said,
        Err(_) => last_json(&output)?,
    };
    Ok(read(&said, u64::from(per_second) * u64::from(seconds)).hold_to(body))
}

fn read(said: &Value, asked: u64) -> Paced {
    let counts = |name: &str| -> Vec<(String, u64)> {
        let map = said[name].as_object();
        map.into_iter().flatten().map(|(key, count)| (key.clone(), count.as_u64().unwrap_or(0))).collect()
    };
    let sum = |counts: Vec<(String, u64)>| counts.into_iter().map(|(_, count)| count).sum::<u64>();
    let (right, wrong): (Vec<_>, Vec<_>) =
        counts("statusCodeDistribution").into_iter().partition(|(status, _)| status == "200");
    let (under_way, broken): (Vec<_>, Vec<_>) =
        counts("errorDistribution").into_iter().partition(|(reason, _)| reason.contains("deadline"));
    let mut percentiles: Vec<(f64, f64)> = said["latencyPercentiles"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, seconds)| {
            let percentile = name.trim_start_matches('p').parse().ok()?;
            Some((percentile, seconds.as_f64()? * 1e3))
        })
        .collect();
    percentiles.sort_by(|one, other| one.0.total_cmp(&other.0));
    Paced {
        asked,
        requests: sum(right),
        failed: sum(wrong) + sum(broken),
        under_way: sum(under_way),
        body_bytes: said["summary"]["totalData"].as_u64().unwrap_or(0),
        percentiles,
    }
}
