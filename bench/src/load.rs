//! The load: `wrk` as fast as the server answers; at a fixed rate a generator of our own, and `oha`
//! beside it.

mod oha;
mod paced;
mod wrk;

pub(crate) use oha::oha;
pub(crate) use paced::Paced;
pub(crate) use wrk::{Wrk, headers_script, tokens_script};

use std::io;

/// What one run saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Socket errors, timeouts, answers that were not 2xx or 3xx, and, where the size of a right
    /// answer is known, every request of a run whose answers had another: a fast wrong answer
    /// counts as failed.
    pub(crate) failed: u64,
    /// Microseconds.
    pub(crate) p99_us: f64,
    /// Bytes of an answer, head included, on average.
    pub(crate) answer_bytes: f64,
}

impl Seen {
    /// Counts every request as failed if the answers were not as long as the right one, and a run
    /// without any answer as a failure. Those that are under way when the run ends are read in
    /// part, hence the allowance.
    pub(crate) fn hold_to(mut self, answer_bytes: usize, connections: u32) -> Self {
        let expected = answer_bytes as f64;
        let allowance = expected * f64::from(connections) / self.requests.max(1) as f64 + 0.5;
        if self.requests == 0 || (self.answer_bytes - expected).abs() > allowance {
            self.failed = self.requests.max(1);
        }
        self
    }
}

/// The JSON in the last line of a tool's output that holds any.
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
            "the load generator said no figures: {}",
            said.trim()
        ))
    })
}
