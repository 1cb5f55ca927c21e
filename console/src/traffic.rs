//! What processes have counted in a time: requests, and calls of the parts behind the gateway, with failures
//! and latency; and the gauges of the queue.
//!
//! Input: scrapes and the increases of their counters. Output: rates, fractions and quantiles. Depends on
//! `config` and `prometheus_text`.

use std::collections::BTreeMap;
use std::ops::Add;

use postern_core::clock::Timestamp;

use crate::config::ProcessKind;
use crate::prometheus_text::Series;

/// Counts failed attempts at upstreams beside all attempts.
const FAILURES: &str = "postern_proxy_upstream_failures_total";
/// Classes and outcomes of requests and calls that have failed.
const FAILED: [&str; 5] = ["5xx", "unavailable", "throttled", "misconfigured", "failed"];

/// What is counted: its kind, and its name among those of the kind.
pub(crate) type Part = (&'static str, String);

/// All requests of the gateways.
pub(crate) const REQUESTS: &str = "requests";
/// Requests of a route.
pub(crate) const ROUTE: &str = "route";
/// Attempts at an upstream.
pub(crate) const UPSTREAM: &str = "upstream";
/// Calls of the identity pool.
pub(crate) const POOL: &str = "pool";
/// Calls of a provider.
pub(crate) const PROVIDER: &str = "provider";
/// Notifications that were `accepted`, and attempts that were `sent`, that are `retrying` or `undelivered`.
pub(crate) const NOTIFICATION: &str = "notification";
/// Waiting notifications of a priority.
pub(crate) const WAITING: &str = "waiting";
/// Seconds for which the oldest of them waits.
pub(crate) const OLDEST: &str = "oldest";

/// What all processes have counted in a time.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Its end.
    pub(crate) at: Timestamp,
    /// Seconds in which a process of a kind answered.
    seconds: BTreeMap<ProcessKind, f64>,
    pub(crate) parts: BTreeMap<Part, Traffic>,
    /// The largest value of each gauge.
    gauges: BTreeMap<Part, f64>,
}

/// Requests of an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: f64,
    /// Responses with 5xx, or failed calls.
    pub(crate) errors: f64,
    /// Responses with 4xx.
    pub(crate) rejections: f64,
    /// Requests by upper bound of the bucket in seconds, cumulative.
    pub(crate) buckets: Vec<(f64, f64)>,
}

// === impl Traffic ===

impl Traffic {
    /// Adds the requests of another interval.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.rejections += other.rejections;
        for (bound, count) in &other.buckets {
            self.add_bucket(*bound, *count);
        }
    }

    /// Multiplies all numbers, so that older requests count less.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.requests *= factor;
        self.buckets
            .iter_mut()
            .for_each(|(_, count)| *count *= factor);
    }

    /// Adds the increase of a counter of requests or calls, of failed ones, or of a bucket.
    fn count(&mut self, series: &Series, increase: f64) {
        if let Ok(bound) = series.label("le").parse() {
            return self.add_bucket(bound, increase);
        }
        let outcomes = [series.label("class"), series.label("outcome")];
        if series.name != FAILURES {
            self.requests += increase;
        }
        if series.name == FAILURES || outcomes.iter().any(|it| FAILED.contains(it)) {
            self.errors += increase;
        } else if outcomes.contains(&"4xx") {
            self.rejections += increase;
        }
    }

    /// Returns the calls that were answered or have failed.
    pub(crate) fn settled(&self) -> f64 {
        let mut buckets = self.buckets.iter();
        let all = buckets.find(|(bound, _)| bound.is_infinite());
        all.map_or(0.0, |(_, count)| *count) + self.errors
    }

    fn add_bucket(&mut self, bound: f64, count: f64) {
        match self.buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += count,
            None => self.buckets.push((bound, count)),
        }
    }

    /// Returns responses with 5xx as a fraction of all; `None` without requests.
    pub(crate) fn error_ratio(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| self.errors / self.requests)
    }

    /// Returns responses with 4xx as a fraction of all; `None` without requests.
    pub(crate) fn rejection_ratio(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| self.rejections / self.requests)
    }

    /// Returns a quantile of the latency in seconds, interpolated within its bucket as Prometheus'
    /// `histogram_quantile` does; `None` without requests.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let mut buckets = self.buckets.clone();
        buckets.sort_by(|left, right| left.0.total_cmp(&right.0));
        let total = buckets.last()?.1;
        let wanted = total * quantile;
        if total <= 0.0 {
            return None;
        }
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= wanted {
                if bound.is_infinite() {
                    return Some(lower);
                }
                let within = (wanted - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(lower + (bound - lower) * within);
            }
            (lower, below) = (bound, count);
        }
        Some(lower)
    }
}

// === impl Interval ===

impl Interval {
    pub(crate) const fn new(at: Timestamp) -> Self {
        Self {
            at,
            seconds: BTreeMap::new(),
            parts: BTreeMap::new(),
            gauges: BTreeMap::new(),
        }
    }

    /// Adds what a process has counted in some seconds, and its gauges. Replicas of the notification
    /// service report the same queue; one whose age is not a number cannot read it.
    pub(crate) fn add(
        &mut self,
        kind: ProcessKind,
        all: &[Series],
        elapsed_s: f64,
        increase: &mut impl FnMut(&Series) -> f64,
    ) {
        // Replicas answer in the same seconds.
        self.seconds.insert(kind, elapsed_s);
        let mut waiting: BTreeMap<Part, f64> = BTreeMap::new();
        for series in all {
            let (name, priority) = (series.name.as_str(), series.label("priority"));
            if name == "postern_notify_queue_rows" {
                let part = (WAITING, priority.to_owned());
                *waiting.entry(part).or_default() += series.value;
            } else if name == "postern_notify_oldest_waiting_seconds" && !series.value.is_nan() {
                self.set_gauge((OLDEST, String::new()), series.value);
            } else if let Some((kind, name)) = part(series) {
                let increase = increase(series);
                let mut count = |kind, name: &str| {
                    let traffic = self.parts.entry((kind, name.to_owned()));
                    traffic.or_default().count(series, increase);
                };
                count(kind, name);
                if kind == ROUTE {
                    count(REQUESTS, "");
                }
            }
        }
        for (part, rows) in waiting {
            self.set_gauge(part, rows);
        }
    }

    fn set_gauge(&mut self, part: Part, value: f64) {
        let known = self.gauges.entry(part).or_insert(value);
        *known = known.max(value);
    }

    /// Adds a later interval.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.at = later.at;
        for (kind, seconds) in &later.seconds {
            *self.seconds.entry(*kind).or_default() += seconds;
        }
        for (part, traffic) in &later.parts {
            self.parts.entry(part.clone()).or_default().add(traffic);
        }
        for (part, value) in &later.gauges {
            self.set_gauge(part.clone(), *value);
        }
    }

    /// Returns what was counted of a part.
    pub(crate) fn part(&self, kind: &'static str, name: &str) -> Traffic {
        let found = self.parts.get(&(kind, name.to_owned()));
        found.cloned().unwrap_or_default()
    }

    /// Returns the parts of a kind.
    pub(crate) fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = (&str, &Traffic)> {
        let all = self.parts.iter();
        let parts = all.filter(move |((known, _), _)| *known == kind);
        parts.map(|((_, name), traffic)| (name.as_str(), traffic))
    }

    /// Returns the number of requests in a second; `None` if no process of the kind that counts them
    /// answered.
    pub(crate) fn per_second(&self, counted_by: ProcessKind, traffic: &Traffic) -> Option<f64> {
        let seconds = self.seconds.get(&counted_by);
        let seconds = seconds.filter(|seconds| **seconds > 0.0)?;
        Some(traffic.requests / seconds)
    }

    /// Returns a gauge; `None` if nobody could tell.
    pub(crate) fn gauge(&self, kind: &'static str, name: &str) -> Option<f64> {
        self.gauges.get(&(kind, name.to_owned())).copied()
    }

    /// Returns the waiting notifications of all priorities.
    pub(crate) fn all_waiting(&self) -> Option<f64> {
        let waiting = self.gauges.iter().filter(|((kind, _), _)| *kind == WAITING);
        waiting.map(|(_, rows)| *rows).reduce(f64::add)
    }
}

/// Returns what a counter counts.
fn part(series: &Series) -> Option<(&'static str, &str)> {
    Some(match series.name.as_str() {
        "postern_requests_total" | "postern_request_seconds_bucket" => {
            (ROUTE, series.label("route"))
        }
        "postern_proxy_upstream_attempts_total" | "postern_upstream_seconds_bucket" | FAILURES => {
            (UPSTREAM, series.label("upstream"))
        }
        "postern_auth_pool_call_seconds_bucket" | "postern_auth_pool_call_seconds_count" => {
            (POOL, "")
        }
        "postern_notify_provider_call_seconds_bucket"
        | "postern_notify_provider_call_seconds_count" => (PROVIDER, series.label("provider")),
        "postern_notify_accepted_total" => (NOTIFICATION, "accepted"),
        "postern_notify_attempts_total" => match series.label("outcome") {
            "failed" | "expired" | "lost" => (NOTIFICATION, "undelivered"),
            outcome => (NOTIFICATION, outcome),
        },
        _ => return None,
    })
}
