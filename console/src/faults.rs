//! Faults that processes count: what has increased in the last ten minutes.
//!
//! Input: the increase of each counter between two samples. Output: [`Fault`]s, of which `findings`
//! makes findings. Depends on `prometheus_text`.

use std::collections::BTreeMap;
use std::time::Duration;

use postern_common::clock::Timestamp;

use crate::prometheus_text::Series;

/// Time for which a fault is shown after its last occurrence.
const SHOWN_FOR: Duration = Duration::from_secs(600);

/// The counters of which each increase is a fault, with the outcomes of those that have some.
const COUNTERS: [(&str, &[&str]); 6] = [
    ("postern_access_events_dropped_total", &[]),
    (
        "postern_auth_pool_call_seconds_count",
        &["throttled", "misconfigured"],
    ),
    ("postern_auth_attempts_throttled_total", &[]),
    // The outcomes of the alert `PosternSocialSignInFailures`.
    (
        "postern_auth_operations_total",
        &[
            "invalid_id_token",
            "provider_error",
            "provider_unavailable",
            "server_error",
            "temporarily_unavailable",
        ],
    ),
    ("postern_notify_webhook_rejections_total", &[]),
    ("postern_notify_quota_exceeded_total", &[]),
];

/// A counter that has increased.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The process that counts.
    pub(crate) process: String,
    pub(crate) series: Series,
    /// How often it occurred since it was shown first.
    pub(crate) count: f64,
    last_at: Timestamp,
}

/// The faults that are shown, by process and series.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<String, Fault>);

// === impl Faults ===

impl Faults {
    /// Returns whether an increase of the series is a fault.
    pub(crate) fn are_counted_by(series: &Series) -> bool {
        COUNTERS.iter().any(|(name, outcomes)| {
            series.name == *name
                && (outcomes.is_empty() || outcomes.contains(&series.label("outcome")))
        })
    }

    /// Adds an increase. `key` identifies process and series.
    pub(crate) fn add(
        &mut self,
        now: Timestamp,
        key: &str,
        process: &str,
        series: &Series,
        increase: f64,
    ) {
        if increase <= 0.0 {
            return;
        }
        let fault = self.0.entry(key.to_owned()).or_insert_with(|| Fault {
            process: process.to_owned(),
            series: series.clone(),
            count: 0.0,
            last_at: now,
        });
        fault.count += increase;
        fault.last_at = now;
    }

    /// Removes the faults that have not occurred again.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.0
            .retain(|_, fault| now.since(fault.last_at) < SHOWN_FOR);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.values()
    }
}
