use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::last_json;

/// What a paced run saw. Latencies are counted from when a request was due, not from when a busy generator came to
/// send it, so that a stall of the server is not left out (coordinated omission).
#[derive(Clone, Debug)]
pub(crate) struct Paced {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    /// Percentile and milliseconds, ascending.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

impl Paced {
    /// Milliseconds at a percentile that oha tells.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let told = self.percentiles.iter().find(|(known, _)| (known - percentile).abs() < 1e-9);
        told.map_or(f64::NAN, |(_, millis)| *millis)
    }
}

/// Asks `per_second` times a second, whether answers come or not.
pub(crate) fn oha(
    program: &Path,
    address: SocketAddr,
    path: &str,
    token: &str,
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
    let counts = |name: &str| -> Vec<(String, u64)> {
        let map = said[name].as_object();
        map.into_iter().flatten().map(|(key, count)| (key.clone(), count.as_u64().unwrap_or(0))).collect()
    };
    let statuses = counts("statusCodeDistribution");
    let right: u64 = statuses.iter().filter(|(status, _)| status == "200").map(|(_, count)| count).sum();
    let wrong: u64 = statuses.iter().filter(|(status, _)| status != "200").map(|(_, count)| count).sum();
    // Requests that are under way when the time is over are no failures.
    let broken: u64 = counts("errorDistribution")
        .iter()
        .filter(|(reason, _)| !reason.contains("deadline"))
        .map(|(_, count)| count)
        .sum();
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
    Ok(Paced { requests: right, failed: wrong + broken, percentiles })
}
