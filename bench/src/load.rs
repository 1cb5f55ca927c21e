//! Load generators: `wrk` and `h2load` for closed-loop load; generators of this crate for new TLS
//! connections and for a fixed rate, the latter with `oha` for comparison.

mod h2load;
mod new_connections;
mod oha;
mod paced;
mod wrk;

pub(crate) use h2load::{EdgeProtocol, H2loadLoad};
pub(crate) use new_connections::NewConnectionsLoad;
pub(crate) use oha::oha;
pub(crate) use paced::{PERCENTILES, PacedResult};
pub(crate) use wrk::{WrkLoad, headers_script, tokens_script};

use std::io;

/// The rate and duration of an open-loop load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadPace {
    /// Requests per second.
    pub(crate) per_second: u32,
    /// Duration in seconds.
    pub(crate) seconds: u32,
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadResult {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Socket errors, timeouts, and responses other than 2xx or 3xx. If the size of a correct
    /// response is known, every request of a run with responses of another size counts as failed.
    pub(crate) failed: u64,
    /// 99th percentile of the latency in microseconds; NaN if the generator reports none.
    pub(crate) p99_us: f64,
    /// Mean size of a response in bytes, including the head.
    pub(crate) answer_bytes: f64,
}

impl LoadResult {
    /// Counts every request as failed if the responses do not have the expected size, and a run
    /// without responses as one failure. Responses in flight at the end are read partially, which
    /// is allowed for.
    pub(crate) fn hold_to(mut self, answer_bytes: usize, connections: u32) -> Self {
        let expected = answer_bytes as f64;
        let allowance = expected * f64::from(connections) / self.requests.max(1) as f64 + 0.5;
        if self.requests == 0 || (self.answer_bytes - expected).abs() > allowance {
            self.failed = self.requests.max(1);
        }
        self
    }
}

/// Returns the JSON in the last line of a tool's output that contains any.
fn last_json(output: &std::process::Output) -> io::Result<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .rev()
        .find(|line| line.starts_with('{'))
        .unwrap_or_default();
    serde_json::from_str(line).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!(
            "the load generator reported no results: {}",
            said.trim()
        ))
    })
}
