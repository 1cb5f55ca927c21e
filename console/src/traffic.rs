//! Requests of an interval: their number, failures and latency.
//!
//! Input: increases of counters and of buckets. Output: fractions and quantiles.

use std::collections::BTreeMap;

use crate::prometheus_text::{Scrape, Series};

/// Routes of a sample; further ones are left out.
const MAX_ROUTES: usize = 2000;

/// By route: requests per second and traffic of the last minute, and the traffic of the hour before.
pub(crate) type RouteTraffic = BTreeMap<String, (f64, Traffic, Traffic)>;

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

/// Adds the increases of the counters of a scrape to the traffic by route.
pub(crate) fn add_traffic(
    routes: &mut BTreeMap<String, Traffic>,
    scrape: &Scrape,
    increase: &mut impl FnMut(&Series) -> f64,
) {
    for series in &scrape.0 {
        let is_request = series.name == "postern_requests_total";
        if !is_request && series.name != "postern_request_seconds_bucket" {
            continue;
        }
        let increase = increase(series);
        let route = series.label("route");
        if !routes.contains_key(route) && routes.len() >= MAX_ROUTES {
            continue;
        }
        let traffic = routes.entry(route.to_owned()).or_default();
        if is_request {
            traffic.requests += increase;
            match series.label("class") {
                "5xx" => traffic.errors += increase,
                "4xx" => traffic.rejections += increase,
                _ => {}
            }
        } else if let Ok(bound) = series.label("le").parse() {
            traffic.add_bucket(bound, increase);
        }
    }
}
