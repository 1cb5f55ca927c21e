//! Requests of an interval, and attempts at upstreams: their number, failures and latency.
//!
//! Input: increases of counters and of buckets. Output: fractions and quantiles.

use std::collections::BTreeMap;

use crate::prometheus_text::{Scrape, Series};

/// Routes of a sample; further ones are left out.
const MAX_ROUTES: usize = 2000;

/// The traffic of each route.
pub(crate) type RouteTraffic = BTreeMap<String, OfRoute>;

/// The traffic of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfRoute {
    pub(crate) requests_per_s: f64,
    pub(crate) minute: Traffic,
    /// The traffic of the last 10 s, in which a fault shows before it does in a minute.
    pub(crate) latest: Traffic,
    /// The traffic of the hour before the last minute.
    pub(crate) before: Traffic,
}

/// What all processes have counted between two samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) elapsed_s: f64,
    /// Requests by route.
    pub(crate) routes: BTreeMap<String, Traffic>,
    /// Attempts at each upstream, and how many of them were answered or failed.
    pub(crate) attempts: BTreeMap<String, (f64, f64)>,
}

/// Requests of an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: f64,
    /// Responses with 5xx.
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
    /// Adds the increases of the counters of a scrape.
    pub(crate) fn add(&mut self, scrape: &Scrape, increase: &mut impl FnMut(&Series) -> f64) {
        for series in &scrape.0 {
            match series.name.as_str() {
                "postern_requests_total" | "postern_request_seconds_bucket" => {
                    let increase = increase(series);
                    self.add_request(series, increase);
                }
                "postern_proxy_upstream_attempts_total" => {
                    self.attempts_at(series).0 += increase(series);
                }
                "postern_upstream_seconds_count" | "postern_proxy_upstream_failures_total" => {
                    self.attempts_at(series).1 += increase(series);
                }
                _ => {}
            }
        }
    }

    fn attempts_at(&mut self, series: &Series) -> &mut (f64, f64) {
        let upstream = series.label("upstream").to_owned();
        self.attempts.entry(upstream).or_default()
    }

    fn add_request(&mut self, series: &Series, increase: f64) {
        let route = series.label("route");
        if !self.routes.contains_key(route) && self.routes.len() >= MAX_ROUTES {
            return;
        }
        let traffic = self.routes.entry(route.to_owned()).or_default();
        if let Ok(bound) = series.label("le").parse() {
            return traffic.add_bucket(bound, increase);
        }
        traffic.requests += increase;
        match series.label("class") {
            "5xx" => traffic.errors += increase,
            "4xx" => traffic.rejections += increase,
            _ => {}
        }
    }
}
