//! Samples of all replicas, one every 5 s for an hour.
//!
//! Rates are differences of counters. A counter that has become smaller was reset by a restart, and
//! counts from zero, as does a new series of a replica that was sampled before. Series of a replica that
//! appears have no rate in their first sample.
//!
//! Input: `/metrics`, `/readyz` and `/admin/info` of each replica. Output: [`Monitor`]. Depends on
//! `config`, `processes`, `prometheus_text`, `status`, `traffic`, `faults` and `findings`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::config::ProcessKind;
use crate::evidence::Evidence;
use crate::faults::Faults;
use crate::findings::{self, Finding};
use crate::processes::{Call, Process, ProcessDirectory};
use crate::prometheus_text::{Scrape, Series};
use crate::status::ProcessStatus;
use crate::traffic::{Interval, RouteTraffic, Traffic};

/// Time between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time of a call of a sample: a process that hangs does not delay what others say.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3);
/// What remains of older traffic with each sample: the mean age is an hour.
const DECAY: f64 = 1.0 - 1.0 / 720.0;
/// One hour of samples.
const MAX_POINTS: usize = 720;
/// Samples of which the current figures are made: one minute.
const CURRENT_POINTS: usize = 12;
/// The last of them, in which a fault shows sooner.
const LATEST_POINTS: usize = 2;
/// An upstream does not answer if it has answered this number of attempts in a minute, and none of this
/// number since.
const SILENCE: (f64, f64) = (10.0, 3.0);

/// Figures of all replicas together, of one interval.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// `None` if no gateway answered.
    pub(crate) requests_per_s: Option<f64>,
    /// Responses with 5xx, as a fraction of all.
    pub(crate) error_ratio: Option<f64>,
    pub(crate) p99_s: Option<f64>,
    /// `None` if no notification service answered, or could tell.
    pub(crate) waiting: Option<f64>,
    pub(crate) oldest_s: Option<f64>,
}

/// What is known of all replicas.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) processes: Vec<ProcessStatus>,
    pub(crate) points: VecDeque<Point>,
    /// Traffic of the last minute.
    recent: VecDeque<Interval>,
    /// Upstreams that do not answer.
    silent: BTreeSet<String>,
    /// Traffic by route of about an hour before the last minute; older requests count less.
    before: BTreeMap<String, Traffic>,
    counters: HashMap<String, f64>,
    faults: Faults,
    evidence: Evidence,
    pub(crate) sampled_at: Option<Timestamp>,
    first_seen: BTreeMap<String, Timestamp>,
}

/// The task that samples, and its results.
#[derive(Debug)]
pub(crate) struct Sampler {
    directory: Arc<ProcessDirectory>,
    clock: Clock,
    monitor: RwLock<Monitor>,
    /// Notified after each sample.
    pub(crate) sampled: Notify,
}

// === impl Sampler ===

impl Sampler {
    pub(crate) fn new(directory: Arc<ProcessDirectory>, clock: Clock) -> Self {
        Self {
            directory,
            clock,
            monitor: RwLock::default(),
            sampled: Notify::new(),
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
        let now = self.clock.now();
        let pages = {
            let mut monitor = self.monitor.write();
            monitor.record(now, statuses);
            monitor.pages()
        };
        let evidence = Evidence::collect(pages, &self.directory, now).await;
        self.monitor.write().evidence = evidence;
        self.sampled.notify_waiters();
    }

    async fn status(&self, process: &Process) -> ProcessStatus {
        let call = |path: &'static str| async move {
            let call = Call::get(path);
            self.directory
                .call_within(process, &call, SAMPLE_TIMEOUT)
                .await
        };
        let (metrics, readiness, info) =
            tokio::join!(call("/metrics"), call("/readyz"), call("/admin/info"));
        let info = info.map(|reply| match reply.status {
            200..300 => reply.json(),
            401 => json!({ "problem": reply.problem() }),
            _ => Value::Null,
        });
        ProcessStatus {
            kind: process.kind,
            name: process.name.clone(),
            error: metrics.as_ref().err().map(ToString::to_string),
            info: info.unwrap_or_default(),
            readiness: readiness.map(|reply| reply.json()).unwrap_or_default(),
            scrape: metrics
                .map(|reply| Scrape::parse(&reply.text))
                .unwrap_or_default(),
            cpu: None,
            answered_at: None,
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
        let mut interval = Interval::default();
        self.faults.expire(now);
        for status in &mut statuses {
            let prefix = format!("{} {}\n", status.kind.as_str(), status.name);
            let id = (status.kind, &status.name);
            let mut known = self.processes.iter();
            let known = known.find(|known| (known.kind, &known.name) == id);
            if let (Some(error), Some(known)) = (&status.error, known) {
                // What it said last, until it answers again.
                counters.extend(self.counters.extract_if(|key, _| key.starts_with(&prefix)));
                *status = ProcessStatus {
                    error: Some(error.clone()),
                    ..known.clone()
                };
                continue;
            }
            status.answered_at = status.error.is_none().then_some(now);
            let was_sampled = known.is_some_and(|known| known.error.is_none());
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
                    self.faults
                        .add(now, &key, status.labels(&series.labels), series, increase);
                }
            }
            let cpu: f64 = status
                .scrape
                .of("process_cpu_seconds_total")
                .map(&mut increase)
                .sum();
            status.cpu = elapsed.map(|elapsed| cpu / elapsed);
            if status.kind == ProcessKind::Gateway {
                interval.add(&status.scrape, &mut increase);
            }
        }
        self.counters = counters;
        self.sampled_at = Some(now);
        if let Some(elapsed_s) = elapsed {
            interval.elapsed_s = elapsed_s;
            self.add_point(interval, &statuses);
        }
        self.processes = statuses;
        let found = self.current(now).into_iter();
        let keys: Vec<String> = found.map(|finding| finding.key).collect();
        self.first_seen.retain(|key, _| keys.contains(key));
        for key in keys {
            self.first_seen.entry(key).or_insert(now);
        }
    }

    /// Adds the figures of an interval, and what is older than a minute to the hour before.
    fn add_point(&mut self, interval: Interval, statuses: &[ProcessStatus]) {
        let point = point(&interval, statuses);
        let has_gateway = point.requests_per_s.is_some();
        let _forgotten = push_bounded(&mut self.points, point, MAX_POINTS);
        let recent = has_gateway.then_some(interval);
        let old = recent.and_then(|recent| push_bounded(&mut self.recent, recent, CURRENT_POINTS));
        if let Some(old) = old {
            self.before.retain(|_, traffic| {
                traffic.scale(DECAY);
                traffic.requests >= 1.0
            });
            for (route, traffic) in old.routes {
                self.before.entry(route).or_default().add(&traffic);
            }
        }
        self.update_silent();
    }

    /// Finds the upstreams that have answered before, and do not answer what they were sent since.
    fn update_silent(&mut self) {
        let is_silent = |upstream: &&String| {
            let of_upstream = |it: &Interval| it.attempts.get(*upstream).copied();
            let all = self.recent.iter().rev().filter_map(of_upstream);
            let before: f64 = all.clone().map(|(_, answers)| answers).sum();
            let since = all.take_while(|(_, answers)| *answers == 0.0);
            let attempts: f64 = since.map(|(attempts, _)| attempts).sum();
            let goes_on = self.silent.contains(*upstream) && attempts > 0.0;
            goes_on || before >= SILENCE.0 && attempts >= SILENCE.1
        };
        let last = self.recent.back().into_iter();
        let upstreams = last.flat_map(|last| last.attempts.keys());
        self.silent = upstreams.filter(is_silent).cloned().collect();
    }

    fn current(&self, now: Timestamp) -> Vec<Finding> {
        findings::of(
            &self.processes,
            &self.faults,
            (&self.routes(), &self.silent),
            &self.evidence,
            now,
        )
    }

    /// Returns what is wrong now, the worst first, with the time when it was seen first.
    pub(crate) fn findings(&self) -> Vec<(Finding, Option<Timestamp>)> {
        let found = self
            .current(self.sampled_at.unwrap_or(Timestamp(0)))
            .into_iter();
        let with_time = found.map(|finding| {
            let at = self.first_seen.get(&finding.key).copied();
            (finding, at)
        });
        with_time.collect()
    }

    /// Returns the pages with the rows behind what is wrong now.
    fn pages(&self) -> BTreeSet<String> {
        let found = self.findings().into_iter().map(|(finding, _)| finding);
        let all = found.flat_map(|mut finding| {
            let below = std::mem::take(&mut finding.consequences);
            below.into_iter().chain([finding])
        });
        all.map(|finding| finding.page)
            .filter(|page| page.contains('?'))
            .collect()
    }

    /// Returns when a process of a kind answered last, if none does now.
    pub(crate) fn silence(&self, kind: ProcessKind) -> Option<Option<Timestamp>> {
        let replicas = self.processes.iter().filter(|process| process.kind == kind);
        let is_silent = replicas.clone().all(|process| process.error.is_some());
        let last = replicas.filter_map(|process| process.answered_at).max();
        is_silent.then_some(last)
    }

    /// Returns the traffic by route.
    pub(crate) fn routes(&self) -> RouteTraffic {
        let elapsed: f64 = self.recent.iter().map(|it| it.elapsed_s).sum();
        let mut all = RouteTraffic::new();
        for (age, interval) in self.recent.iter().rev().enumerate() {
            for (route, traffic) in &interval.routes {
                let of_route = all.entry(route.clone()).or_default();
                of_route.minute.add(traffic);
                if age < LATEST_POINTS {
                    of_route.latest.add(traffic);
                }
            }
        }
        for (route, traffic) in &mut all {
            traffic.requests_per_s = traffic.minute.requests / elapsed.max(1.0);
            traffic.before = self.before.get(route).cloned().unwrap_or_default();
        }
        all
    }

    /// Returns the traffic of the last minute over all routes.
    pub(crate) fn total(&self) -> (f64, Traffic) {
        let mut total = Traffic::default();
        let routes = self.routes();
        let rate = routes.values().map(|route| route.requests_per_s).sum();
        for route in routes.values() {
            total.add(&route.minute);
        }
        (rate, total)
    }
}

fn point(interval: &Interval, statuses: &[ProcessStatus]) -> Point {
    let mut total = Traffic::default();
    let routes = interval.routes.values();
    routes.for_each(|traffic| total.add(traffic));
    // Replicas of the notification service report the same queue. One whose age is not a number cannot
    // be read.
    let queue = |name: &'static str, fold: fn(f64, f64) -> f64| {
        let alive = statuses.iter().filter(|status| status.error.is_none());
        let of_replica = |status: &ProcessStatus| {
            let values = status.scrape.of(name).map(|series| series.value);
            values.filter(|value| !value.is_nan()).reduce(fold)
        };
        alive.filter_map(of_replica).reduce(f64::max)
    };
    let answers =
        |status: &ProcessStatus| status.kind == ProcessKind::Gateway && status.error.is_none();
    let is_answered = statuses.iter().any(answers);
    Point {
        requests_per_s: is_answered.then(|| total.requests / interval.elapsed_s),
        error_ratio: total.error_ratio(),
        p99_s: total.quantile(0.99),
        waiting: queue("postern_notify_queue_rows", |sum, value| sum + value),
        oldest_s: queue("postern_notify_oldest_waiting_seconds", f64::max),
    }
}

/// Adds an item and returns the oldest if it has no place any more.
fn push_bounded<T>(ring: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    ring.push_back(item);
    (ring.len() > max).then(|| ring.pop_front()).flatten()
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
        assert_eq!(
            (point.requests_per_s, point.error_ratio),
            (Some(20.0), Some(0.1))
        );
        // Restarted: 50 requests since.
        monitor.record(Timestamp(10_000), requests(50, 0));
        assert_eq!(
            monitor.points.back().expect("a point").requests_per_s,
            Some(10.0)
        );
        assert_eq!(monitor.total().0, 15.0);
    }

    #[test]
    fn series_of_a_replica_that_appears_has_no_rate_at_first() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), Vec::new());
        monitor.record(Timestamp(5000), requests(1_000_000, 0));
        assert_eq!(
            monitor.points.back().expect("a point").requests_per_s,
            Some(0.0)
        );
    }

    #[test]
    fn counted_fault_is_over_after_a_minute() {
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
        assert_eq!(finding.key, "WebhookRejections twilio signature");
        assert_eq!(since, Some(Timestamp(5000)));
        monitor.record(Timestamp(69_999), rejections(3));
        assert_eq!(monitor.findings().len(), 1);
        monitor.record(Timestamp(70_000), rejections(3));
        assert!(monitor.findings().is_empty());
    }

    #[test]
    fn figures_of_a_silent_process_are_old_and_not_zero() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), requests(0, 0));
        monitor.record(Timestamp(5000), requests(100, 0));
        let mut silent = gateway("");
        silent[0].error = Some("refused".to_owned());
        monitor.record(Timestamp(10_000), silent);
        assert_eq!(monitor.points.back().expect("a point").requests_per_s, None);
        assert_eq!(monitor.total().0, 20.0, "the last figure");
        let since = monitor.silence(ProcessKind::Gateway);
        assert_eq!(since, Some(Some(Timestamp(5000))));
        assert_eq!(
            monitor.findings()[0].0.key,
            "ProcessDown postern-proxy gateway-0"
        );
        // It counted on meanwhile.
        monitor.record(Timestamp(15_000), requests(200, 0));
        assert_eq!(
            monitor.points.back().expect("a point").requests_per_s,
            Some(20.0)
        );
        assert!(monitor.silence(ProcessKind::Gateway).is_none() && monitor.findings().is_empty());
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
