//! Samples of all replicas, one every 5 s, and their history.
//!
//! Rates are differences of counters. A counter that has become smaller was reset by a restart, and
//! counts from zero, as does a new series of a replica that was sampled before. Series of a replica that
//! appears have no rate in their first sample.
//!
//! Input: `/metrics`, `/readyz` and `/admin/info` of each replica. Output: [`Monitor`]. Depends on
//! `config`, `history`, `processes`, `prometheus_text`, `status`, `traffic`, `faults` and `findings`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::evidence::{self, Evidence};
use crate::faults::Faults;
use crate::findings::{self, Finding};
use crate::history::History;
use crate::processes::{Call, Process, ProcessDirectory};
use crate::prometheus_text::{Scrape, Series};
use crate::status::ProcessStatus;
use crate::traffic::{Interval, ROUTE, Traffic, UPSTREAM};

/// Time between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time of a call of a sample: a process that hangs does not delay what others say.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3);
/// What remains of older traffic with each sample: the mean age is an hour.
const DECAY: f64 = 1.0 - 1.0 / 720.0;
/// Samples of which the current figures are made: one minute.
const CURRENT_POINTS: usize = 12;
/// The last of them, in which a fault shows sooner.
const LATEST_POINTS: usize = 2;
/// An upstream does not answer if it has answered this number of attempts in a minute, and none of this
/// number since.
const SILENCE: (f64, f64) = (10.0, 3.0);

/// What is known of all replicas.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) processes: Vec<ProcessStatus>,
    pub(crate) history: History,
    /// The intervals of the last minute.
    recent: VecDeque<Interval>,
    /// Upstreams that do not answer.
    silent: BTreeSet<String>,
    /// Traffic by route of about an hour before the last minute; older requests count less.
    before: BTreeMap<String, Traffic>,
    counters: HashMap<String, f64>,
    faults: Faults,
    evidence: Evidence,
    pub(crate) sampled_at: Option<Timestamp>,
    /// What is wrong, the worst first.
    pub(crate) findings: Vec<Finding>,
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

    /// Samples again and again.
    pub(crate) async fn run(&self) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sample().await;
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
        let evidence = evidence::collect(pages, &self.directory, now).await;
        let mut monitor = self.monitor.write();
        monitor.evidence = evidence;
        monitor.judge(now);
        drop(monitor);
        self.sampled.notify_waiters();
    }

    async fn status(&self, process: &Process) -> ProcessStatus {
        let call = |path: &'static str| async move {
            let call = Call::get(path).within(SAMPLE_TIMEOUT);
            self.directory.call(process, &call).await
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
            error: metrics.as_ref().err().map(|error| error.reason.clone()),
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
        let mut interval = Interval::new(now);
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
            let cpu = status.scrape.of("process_cpu_seconds_total");
            let cpu: f64 = cpu.map(&mut increase).sum();
            status.cpu = elapsed.map(|elapsed| cpu / elapsed);
            if status.error.is_none() {
                let elapsed_s = elapsed.unwrap_or(0.0);
                interval.add(status.kind, &status.scrape.0, elapsed_s, &mut increase);
            }
        }
        self.counters = counters;
        self.sampled_at = Some(now);
        if elapsed.is_some() {
            self.add_interval(interval);
        }
        self.processes = statuses;
        self.judge(now);
    }

    /// Adds an interval, and what is older than a minute to the hour before.
    fn add_interval(&mut self, interval: Interval) {
        self.history.add(&interval);
        self.recent.push_back(interval);
        let is_full = self.recent.len() > CURRENT_POINTS;
        if let Some(old) = self.recent.pop_front_if(|_| is_full) {
            self.before.retain(|_, traffic| {
                traffic.scale(DECAY);
                traffic.requests >= 1.0
            });
            for (route, traffic) in old.of_kind(ROUTE) {
                let before = self.before.entry(route.to_owned());
                before.or_default().add(traffic);
            }
        }
        self.update_silent();
    }

    /// Finds the upstreams that have answered before, and do not answer what they were sent since.
    fn update_silent(&mut self) {
        let is_silent = |upstream: &&str| {
            let newest_first = self.recent.iter().rev();
            let all = newest_first.map(|it| it.part(UPSTREAM, upstream));
            let before: f64 = all.clone().map(|it| it.settled()).sum();
            let since = all.take_while(|it| it.settled() == 0.0);
            let attempts: f64 = since.map(|it| it.requests).sum();
            let goes_on = self.silent.contains(*upstream) && attempts > 0.0;
            goes_on || before >= SILENCE.0 && attempts >= SILENCE.1
        };
        let last = self.recent.back().into_iter();
        let upstreams = last.flat_map(|last| last.of_kind(UPSTREAM));
        let upstreams = upstreams.map(|(upstream, _)| upstream).filter(is_silent);
        self.silent = upstreams.map(str::to_owned).collect();
    }

    /// Finds what is wrong now. What was wrong before keeps the time when it was seen first.
    fn judge(&mut self, now: Timestamp) {
        let traffic = (&self.minute(), &self.last(LATEST_POINTS), &self.before);
        let mut found = findings::of(
            &self.processes,
            &self.faults,
            traffic,
            &self.silent,
            &self.evidence,
            now,
        );
        for finding in &mut found {
            let mut before = self.findings.iter();
            let before = before.find(|before| before.key == finding.key);
            finding.since = before.and_then(|before| before.since).or(Some(now));
        }
        self.findings = found;
    }

    /// Returns the pages with the rows behind what is wrong now.
    fn pages(&self) -> BTreeSet<String> {
        let all = self.findings.iter().flat_map(Finding::all);
        let pages = all.map(|finding| finding.page.clone());
        pages.filter(|page| page.contains('?')).collect()
    }

    /// Returns the last intervals as one.
    fn last(&self, count: usize) -> Interval {
        let mut sum = Interval::new(Timestamp(0));
        let first = self.recent.len().saturating_sub(count);
        self.recent.iter().skip(first).for_each(|it| sum.merge(it));
        sum
    }

    /// Returns what was counted in the last minute.
    pub(crate) fn minute(&self) -> Interval {
        self.last(CURRENT_POINTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProcessKind;
    use crate::history::RANGES;
    use crate::testing::gateway;
    use crate::traffic::REQUESTS;

    /// Returns rate and error ratio of an interval.
    fn figures(interval: &Interval) -> (Option<f64>, Option<f64>) {
        let requests = interval.part(REQUESTS, "");
        let rate = interval.per_second(ProcessKind::Gateway, &requests);
        (rate, requests.error_ratio())
    }

    /// Returns the figures of the newest point.
    fn last(monitor: &Monitor) -> (Option<f64>, Option<f64>) {
        let points = monitor.history.of(&RANGES[0]);
        figures(points.last().expect("a point"))
    }

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
        let points = monitor.history.of(&RANGES[0]);
        assert!(points.is_empty(), "one sample has no rate");
        monitor.record(Timestamp(5000), requests(1090, 10));
        assert_eq!(last(&monitor), (Some(20.0), Some(0.1)));
        // Restarted: 50 requests since.
        monitor.record(Timestamp(10_000), requests(50, 0));
        assert_eq!(last(&monitor).0, Some(10.0));
        assert_eq!(figures(&monitor.minute()).0, Some(15.0));
    }

    #[test]
    fn series_of_a_replica_that_appears_has_no_rate_at_first() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), Vec::new());
        monitor.record(Timestamp(5000), requests(1_000_000, 0));
        assert_eq!(last(&monitor).0, Some(0.0));
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
        let finding = monitor.findings.first().expect("a finding");
        assert_eq!(finding.key, "WebhookRejections twilio signature");
        assert_eq!(finding.since, Some(Timestamp(5000)));
        monitor.record(Timestamp(69_999), rejections(3));
        assert_eq!(monitor.findings.len(), 1);
        monitor.record(Timestamp(70_000), rejections(3));
        assert!(monitor.findings.is_empty());
    }

    #[test]
    fn figures_of_a_silent_process_are_old_and_not_zero() {
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), requests(0, 0));
        monitor.record(Timestamp(5000), requests(100, 0));
        let mut silent = gateway("");
        silent[0].error = Some("refused".to_owned());
        monitor.record(Timestamp(10_000), silent);
        assert_eq!(last(&monitor).0, None);
        assert_eq!(figures(&monitor.minute()).0, Some(20.0), "the last figure");
        let answered_at = monitor.processes[0].answered_at;
        assert_eq!(answered_at, Some(Timestamp(5000)));
        assert_eq!(
            monitor.findings[0].key,
            "ProcessDown postern-proxy gateway-0"
        );
        // It counted on meanwhile.
        monitor.record(Timestamp(15_000), requests(200, 0));
        assert_eq!(last(&monitor).0, Some(20.0));
        assert!(monitor.findings.is_empty());
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
}
