//! Faults that processes count: the increases of counters in the last minute.
//!
//! Input: the increase of each counter between two samples. Output: sums, of which `findings` makes
//! findings. Depends on `conditions` and `prometheus_text`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use postern_core::clock::Timestamp;

use crate::conditions::{CONDITIONS, Condition, Labels, Watch};
use crate::prometheus_text::Series;

/// Time in which increases count: a fault is over when it has not occurred for this time.
const WINDOW: Duration = Duration::from_secs(60);

/// A counter that has increased.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The series with the labels of its process.
    pub(crate) labels: Labels,
    series: Series,
    increases: VecDeque<(Timestamp, f64)>,
}

/// The counters that have increased, by process and series.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<String, Fault>);

// === impl Faults ===

impl Faults {
    /// Returns whether an increase of the series can be a fault.
    pub(crate) fn are_counted_by(series: &Series) -> bool {
        let counts = |it: &Condition| it.watch == Watch::Rises && it.selects(series);
        CONDITIONS.iter().any(counts)
    }

    /// Adds an increase. `key` identifies process and series.
    pub(crate) fn add(
        &mut self,
        now: Timestamp,
        key: &str,
        labels: Labels,
        series: &Series,
        increase: f64,
    ) {
        if increase > 0.0 {
            let fault = self.0.entry(key.to_owned()).or_insert_with(|| Fault {
                labels,
                series: series.clone(),
                increases: VecDeque::new(),
            });
            // A start counts from the second one on: a deployment is no fault.
            let starts = fault.increases.len().min(1) as f64;
            let is_start = series.name == "process_start_time_seconds";
            let increase = if is_start { starts } else { increase };
            fault.increases.push_back((now, increase));
        }
    }

    /// Forgets increases that are older than a minute.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.0.retain(|_, fault| {
            fault.increases.retain(|(at, _)| now.since(*at) < WINDOW);
            !fault.increases.is_empty()
        });
    }

    /// Returns the series of a condition whose increases together are above its number.
    pub(crate) fn rising(&self, condition: &Condition) -> Vec<&Fault> {
        let rises = |fault: &&Fault| fault.increases.iter().any(|(_, count)| *count > 0.0);
        let all = self.0.values().filter(rises);
        let faults: Vec<&Fault> = all.filter(|it| condition.selects(&it.series)).collect();
        let increases = faults.iter().flat_map(|fault| &fault.increases);
        let total: f64 = increases.map(|(_, count)| count).sum();
        let sign = condition.sign.as_ref();
        let limit = sign.map_or(f64::INFINITY, |sign| sign.value);
        if total > limit { faults } else { Vec::new() }
    }
}
