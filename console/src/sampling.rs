//! Samples of all replicas, one every 5 s for an hour.
//!
//! Rates are differences of counters. A counter that has become smaller was reset by a restart, and
//! counts from zero, as does a new series of a replica that was sampled before. Series of a replica that
//! appears have no rate in their first sample.
//!
//! Input: `/metrics`, `/readyz` and `/admin/info` of each replica. Output: [`Monitor`]. Depends on
//! `config`, `processes`, `prometheus_text`, `status`, `traffic`, `faults` and `findings`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::config::ProcessKind;
use crate::faults::Faults;
use crate::findings::{self, Finding};
use crate::processes::{Call, Process, ProcessDirectory};
use crate::prometheus_text::{Scrape, Series};
use crate::status::ProcessStatus;
use crate::traffic::{RouteTraffic, Traffic};

/// Time between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// One hour of samples.
const MAX_POINTS: usize = 720;
/// Samples of which the current figures are made: one minute.
const CURRENT_POINTS: usize = 12;
/// Routes of a sample; further ones are left out.
const MAX_ROUTES: usize = 2000;

/// Figures of all replicas together, of one interval.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) requests_per_s: f64,
    /// Responses with 5xx, as a fraction of all.
    pub(crate) error_ratio: Option<f64>,
    pub(crate) p99_s: Option<f64>,
    pub(crate) waiting: f64,
    pub(crate) oldest_s: f64,
}

/// What is known of all replicas.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) processes: Vec<ProcessStatus>,
    pub(crate) points: VecDeque<Point>,
    /// Traffic by route of the last minute, one map per sample.
    recent: VecDeque<(f64, BTreeMap<String, Traffic>)>,
    counters: HashMap<String, f64>,
    faults: Faults,
    sampled_at: Option<Timestamp>,
    first_seen: BTreeMap<String, Timestamp>,
}

/// The task that samples, and its results.
#[derive(Debug)]
pub(crate) struct Sampler {
    directory: Arc<ProcessDirectory>,
    clock: Clock,
    monitor: RwLock<Monitor>,
}

// === impl Sampler ===

impl Sampler {
    pub(crate) fn new(directory: Arc<ProcessDirectory>, clock: Clock) -> Self {
        Self {
            directory,
            clock,
            monitor: RwLock::default(),
        }
    }

    /// Samples until `stop` is cancelled.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.sample().await,
            }
        }
    }

    /// Takes one sample.
    pub(crate) async fn sample(&self) {
        self.directory.resolve().await;
        let processes = self.directory.all();
        let statuses = processes.iter().map(|process| self.status(process));
        let statuses = join_all(statuses).await;
        self.monitor.write().record(self.clock.now(), statuses);
    }

    async fn status(&self, process: &Process) -> ProcessStatus {
        let call = |path: &'static str| async move {
            let call = Call::get(path);
            self.directory.call(process, &call).await
        };
        let (metrics, readiness, info) =
            tokio::join!(call("/metrics"), call("/readyz"), call("/admin/info"));
        let info = info.ok().filter(|reply| reply.is_success());
        ProcessStatus {
            kind: process.kind,
            name: process.name.clone(),
            error: metrics.as_ref().err().map(ToString::to_string),
            info: info.map(|reply| reply.json()).unwrap_or_default(),
            readiness: readiness.map(|reply| reply.json()).unwrap_or_default(),
            scrape: metrics
                .map(|reply| Scrape::parse(&reply.text))
                .unwrap_or_default(),
            cpu: None,
        }
    }

    /// Calls `read` with what is known.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Monitor) -> T) -> T {
        read(&self.monitor.read())
    }

    /// Returns the current instant of the console.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

// === impl Monitor ===

impl Monitor {
    /// Adds the samples of an instant.
    pub(crate) fn record(&mut self, now: Timestamp, mut statuses: Vec<ProcessStatus>) {
        let elapsed = self.sampled_at.map(|at| now.since(at).as_secs_f64());
        let elapsed = elapsed.filter(|elapsed| *elapsed > 0.0);
        let mut counters = HashMap::new();
        let mut routes: BTreeMap<String, Traffic> = BTreeMap::new();
        self.faults.expire(now);
        for status in &mut statuses {
            let prefix = format!("{} {}\n", status.kind.as_str(), status.name);
            let was_sampled = self.processes.iter().any(|known| {
                (known.kind, &known.name) == (status.kind, &status.name) && known.error.is_none()
            });
            let mut increase = |series: &Series| {
                let key = format!("{prefix}{}", series.key());
                let before = self.counters.get(&key).copied();
                let increase = match before.or(was_sampled.then_some(0.0)) {
                    Some(before) if series.value >= before => series.value - before,
                    Some(_) => series.value,
                    None => 0.0,
                };
                counters.insert(key, series.value);
                increase
            };
            for series in &status.scrape.0 {
                if Faults::are_counted_by(series) {
                    let key = format!("{prefix}{}", series.key());
                    let increase = increase(series);
                    self.faults.add(now, &key, &status.name, series, increase);
                }
            }
            let cpu: f64 = status
                .scrape
                .of("process_cpu_seconds_total")
                .map(&mut increase)
                .sum();
            status.cpu = elapsed.map(|elapsed| cpu / elapsed);
            if status.kind == ProcessKind::Gateway {
                add_traffic(&mut routes, &status.scrape, &mut increase);
            }
        }
        self.counters = counters;
        self.sampled_at = Some(now);
        if let Some(elapsed) = elapsed {
            let point = point(elapsed, &routes, &statuses);
            push_bounded(&mut self.points, point, MAX_POINTS);
            push_bounded(&mut self.recent, (elapsed, routes), CURRENT_POINTS);
        }
        self.processes = statuses;
        let routes = self.routes();
        let keys: Vec<String> = findings::of(&self.processes, &self.faults, &routes, now)
            .into_iter()
            .map(|finding| finding.key)
            .collect();
        self.first_seen.retain(|key, _| keys.contains(key));
        for key in keys {
            self.first_seen.entry(key).or_insert(now);
        }
    }

    /// Returns what is wrong now, the worst first, with the time when it was seen first.
    pub(crate) fn findings(&self) -> Vec<(Finding, Option<Timestamp>)> {
        let now = self.sampled_at.unwrap_or(Timestamp(0));
        let found = findings::of(&self.processes, &self.faults, &self.routes(), now).into_iter();
        let with_time = found.map(|finding| {
            let at = self.first_seen.get(&finding.key).copied();
            (finding, at)
        });
        with_time.collect()
    }

    /// Returns the requests per second and the traffic of the last minute by route.
    pub(crate) fn routes(&self) -> RouteTraffic {
        let elapsed: f64 = self.recent.iter().map(|(elapsed, _)| elapsed).sum();
        let mut all: BTreeMap<String, Traffic> = BTreeMap::new();
        for (route, traffic) in self.recent.iter().flat_map(|(_, routes)| routes) {
            all.entry(route.clone()).or_default().add(traffic);
        }
        let rate = |traffic: &Traffic| traffic.requests / elapsed.max(1.0);
        all.into_iter()
            .map(|(route, traffic)| (route, (rate(&traffic), traffic)))
            .collect()
    }

    /// Returns the traffic of the last minute over all routes.
    pub(crate) fn total(&self) -> (f64, Traffic) {
        let mut total = Traffic::default();
        let routes = self.routes();
        let rate = routes.values().map(|(rate, _)| rate).sum();
        for (_, traffic) in routes.values() {
            total.add(traffic);
        }
        (rate, total)
    }
}

fn add_traffic(
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
        } else if let Some(bound) = bound(series.label("le")) {
            traffic.add_bucket(bound, increase);
        }
    }
}

fn bound(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

fn point(elapsed: f64, routes: &BTreeMap<String, Traffic>, statuses: &[ProcessStatus]) -> Point {
    let mut total = Traffic::default();
    routes.values().for_each(|traffic| total.add(traffic));
    // Replicas of the notification service report the same queue.
    let queue = |name: &'static str, fold: fn(f64, f64) -> f64| {
        let of_replica = |status: &ProcessStatus| {
            let values = status.scrape.of(name).map(|series| series.value);
            values.fold(0.0, fold)
        };
        statuses.iter().map(of_replica).fold(0.0, f64::max)
    };
    Point {
        requests_per_s: total.requests / elapsed,
        error_ratio: total.error_ratio(),
        p99_s: total.quantile(0.99),
        waiting: queue("postern_notify_queue_rows", |sum, value| sum + value),
        oldest_s: queue("postern_notify_oldest_waiting_seconds", f64::max),
    }
}

fn push_bounded<T>(ring: &mut VecDeque<T>, item: T, max: usize) {
    if ring.len() >= max {
        ring.pop_front();
    }
    ring.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;

    fn requests(ok: u32, failed: u32) -> Vec<ProcessStatus> {
        gateway(&format!(
            "postern_requests_total{{route=\"a\",class=\"2xx\"}} {ok}\n\
             postern_requests_total{{route=\"a\",class=\"5xx\"}} {failed}\n"
        ))
    }

    #[test]
    fn rate_is_the_difference_and_a_reset_counts_from_zero() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), requests(1000, 0));
        assert!(monitor.points.is_empty(), "one sample has no rate");
        monitor.record(Timestamp(5000), requests(1090, 10));
        let point = monitor.points.back().expect("a point");
        assert_eq!((point.requests_per_s, point.error_ratio), (20.0, Some(0.1)));
        // Restarted: 50 requests since.
        monitor.record(Timestamp(10_000), requests(50, 0));
        assert_eq!(monitor.points.back().expect("a point").requests_per_s, 10.0);
        assert_eq!(monitor.total().0, 15.0);
    }

    #[test]
    fn series_of_a_replica_that_appears_has_no_rate_at_first() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), Vec::new());
        monitor.record(Timestamp(5000), requests(1_000_000, 0));
        assert_eq!(monitor.points.back().expect("a point").requests_per_s, 0.0);
    }

    #[test]
    fn counted_fault_is_shown_for_ten_minutes() {
        let rejections = |count: u32| {
            gateway(&format!(
                "up 1\npostern_notify_webhook_rejections_total{{provider=\"twilio\",reason=\"signature\"}} {count}\n"
            ))
        };
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), gateway("up 1\n"));
        // The series appears with its first increase.
        monitor.record(Timestamp(5000), rejections(2));
        monitor.record(Timestamp(10_000), rejections(3));
        let (finding, since) = monitor.findings().pop().expect("a finding");
        assert_eq!(
            finding.title,
            ("Delivery reports rejected", "twilio".to_owned())
        );
        assert!(
            finding.detail.starts_with("signature; 3 times"),
            "{}",
            finding.detail
        );
        assert_eq!(since, Some(Timestamp(5000)));
        monitor.record(Timestamp(609_999), rejections(3));
        assert_eq!(monitor.findings().len(), 1);
        monitor.record(Timestamp(610_000), rejections(3));
        assert!(monitor.findings().is_empty());
    }

    #[test]
    fn quantile_is_interpolated_within_its_bucket() {
        let traffic = Traffic {
            requests: 100.0,
            errors: 0.0,
            rejections: 0.0,
            buckets: vec![(f64::INFINITY, 100.0), (0.1, 50.0), (0.2, 90.0)],
        };
        let p50 = traffic.quantile(0.5).expect("requests");
        let p70 = traffic.quantile(0.7).expect("requests");
        assert!(
            (p50 - 0.1).abs() < 1e-9 && (p70 - 0.15).abs() < 1e-9,
            "{p50} {p70}"
        );
        assert_eq!(traffic.quantile(0.99), Some(0.2));
        assert_eq!(Traffic::default().quantile(0.5), None);
    }

    #[test]
    fn samples_are_kept_for_an_hour() {
        let mut monitor = Monitor::default();
        for tick in 0..2000 {
            monitor.record(Timestamp(tick * 5000), requests(0, 0));
        }
        assert_eq!((monitor.points.len(), monitor.recent.len()), (720, 12));
    }
}
