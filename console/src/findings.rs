//! What is wrong now: the conditions that the state of the replicas meets, causes with their
//! consequences.
//!
//! Input: [`ProcessStatus`]es, [`Faults`], [`Interval`]s and the [`Evidence`] of requests. Output:
//! [`Finding`]s, the worst first. Depends on `conditions`, `config`, `evidence`, `faults`, `status`,
//! `traffic` and `widgets`.

use std::collections::{BTreeMap, BTreeSet};

use postern_core::clock::Timestamp;

use crate::conditions::{CONDITIONS, Condition, Labels, Watch, named};
use crate::config::ProcessKind;
use crate::evidence::Evidence;
use crate::faults::Faults;
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::{Interval, ROUTE, Traffic};
use crate::widgets::CHANNELS;

/// Fraction of 5xx above which a route fails: that of the alert `PosternRouteErrors`.
const MAX_ERROR_RATIO: f64 = 0.05;
/// Responses with 5xx in the last minute below which a route does not fail.
const MIN_ERRORS: f64 = 3.0;
/// Fraction of 4xx above which a route rejects: that of the alert `PosternRouteRejections`.
const MAX_REJECTION_RATIO: f64 = 0.5;
/// Responses with 4xx in the last minute below which a route does not reject.
const MIN_REJECTIONS: f64 = 6.0;
/// What the alert `PosternRouteSlow` compares: this quantile, which is above this number of seconds and
/// above this multiple of that of the hour before.
const SLOW: (f64, f64, f64) = (0.9, 0.25, 4.0);
/// Requests in the last minute, and in the hour before, below which a route is not compared.
const MIN_COMPARED: (f64, f64) = (5.0, 20.0);
/// Fraction of open file descriptors, and seconds between the clocks of a process and the console, from
/// which something is wrong.
const MAX_USED_DESCRIPTORS: f64 = 0.9;
const MAX_SKEW_S: f64 = 60.0;
/// The name of the route of requests that match none.
const NO_ROUTE: &str = "none";
/// Labels that name a part of `/readyz`.
const PARTNERS: [&str; 2] = ["dependency", "provider"];
/// Labels that say where a finding is from.
const PROCESS: [&str; 2] = ["job", "instance"];
/// Labels that a finding shares with its consequences.
const SHARED: &str = "upstream provider channel code certificate dependency";

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) condition: &'static Condition,
    /// Identifies the finding in the next sample.
    pub(crate) key: String,
    /// The name of what is wrong.
    pub(crate) subject: String,
    pub(crate) detail: String,
    /// The page with more.
    pub(crate) page: String,
    /// What the finding concerns, with which its consequences are found.
    about: BTreeSet<(String, String)>,
    pub(crate) consequences: Vec<Finding>,
    /// When it was seen first; `None` for a consequence.
    pub(crate) since: Option<Timestamp>,
}

// === impl Finding ===

impl Finding {
    /// Returns the finding and its consequences.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        [self].into_iter().chain(&self.consequences)
    }

    /// Returns the values of a label among what the finding concerns.
    pub(crate) fn about(&self, label: &str) -> impl Iterator<Item = &str> {
        let of_label = self.about.iter().filter(move |(name, _)| name == label);
        of_label.map(|(_, value)| value.as_str())
    }
}

/// Findings under construction, in the order of the table.
#[derive(Debug, Default)]
struct Found(Vec<Finding>);

/// Returns what is wrong, the worst first.
pub(crate) fn of(
    processes: &[ProcessStatus],
    faults: &Faults,
    (minute, latest, before): (&Interval, &Interval, &BTreeMap<String, Traffic>),
    silent: &BTreeSet<String>,
    evidence: &Evidence,
    now: Timestamp,
) -> Vec<Finding> {
    let mut found = Found::default();
    for process in processes {
        of_process(process, now, &mut found);
    }
    for condition in CONDITIONS.iter() {
        let Some(sign) = &condition.sign else {
            continue;
        };
        if condition.watch == Watch::Rises {
            for fault in faults.rising(condition) {
                // What the description does not name, such as `cause` or `outcome`.
                let mut others = fault.labels.clone();
                others.retain(|name, _| condition.labels().chain(PROCESS).all(|it| it != name));
                let others: Vec<String> = others.into_values().collect();
                found.add(condition, &fault.labels, 0.0, Some(others.join(" ")));
            }
            continue;
        }
        let alive = processes.iter().filter(|process| process.error.is_none());
        for (process, series) in
            alive.flat_map(|process| process.scrape.0.iter().map(move |it| (process, it)))
        {
            let left_s = series.value - now.0 as f64 / 1000.0;
            let (is_met, value) = match condition.watch {
                Watch::Ends => (left_s < sign.value, left_s.max(0.0)),
                Watch::Above => (series.value > sign.value, series.value),
                Watch::Is | Watch::Rises | Watch::Judged | Watch::Covered => {
                    (series.value == sign.value, series.value)
                }
            };
            if is_met && condition.selects(series) {
                let partners = PARTNERS.iter().map(|name| series.label(name));
                let part = condition.page.trim_start_matches('/');
                let mut partners = partners.chain([part]);
                let reason = partners.find_map(|partner| reason(process, partner));
                found.add(condition, &process.labels(&series.labels), value, reason);
            }
        }
    }
    compare_replicas(processes, &mut found);
    for upstream in silent {
        let labels = Labels::from([("upstream".to_owned(), upstream.clone())]);
        found.judge("UpstreamSilent", &labels, 0.0, None);
    }
    for (route, traffic) in minute.of_kind(ROUTE) {
        let views = [traffic, &latest.part(ROUTE, route)];
        of_route(route, views, before.get(route), &mut found);
    }
    found.grouped(evidence)
}

// === impl Found ===

impl Found {
    /// Adds a finding of the condition of a name.
    fn judge(&mut self, name: &str, labels: &Labels, value: f64, more: Option<String>) {
        if let Some(condition) = named(name) {
            self.add(condition, labels, value, more);
        }
    }

    /// Adds a finding, or what it says of another process to one that is known.
    fn add(
        &mut self,
        condition: &'static Condition,
        labels: &Labels,
        value: f64,
        more: Option<String>,
    ) {
        let mut names: Vec<&str> = condition.labels().collect();
        if names.iter().any(|name| !PROCESS.contains(name)) {
            names.retain(|name| !PROCESS.contains(name));
        }
        let subject = names.iter().filter_map(|name| labels.get(*name)).cloned();
        let subject = subject.collect::<Vec<_>>().join(" ");
        let key = format!("{} {subject}", condition.name);
        let detail = condition.describe(labels, value);
        let index = self.0.iter().position(|known| known.key == key);
        let index = index.unwrap_or_else(|| {
            self.0.push(Finding {
                condition,
                key,
                subject,
                detail: detail.trim_end_matches('.').to_owned(),
                page: condition.page(labels),
                about: BTreeSet::new(),
                consequences: Vec::new(),
                since: None,
            });
            self.0.len() - 1
        });
        let finding = &mut self.0[index];
        let is_shared = |(name, _): &(&String, &String)| SHARED.split(' ').any(|it| it == *name);
        let shared = labels.iter().filter(is_shared);
        let shared = shared.map(|(name, value)| (name.clone(), value.clone()));
        finding.about.extend(shared);
        let job = labels.get("job").map_or("", String::as_str);
        let job = job.trim_start_matches("postern-");
        if ["process", "dependencies"].contains(&condition.group) {
            // The routes to the process, and what else it lacks.
            let channels = CHANNELS.map(|name| ("channel", name));
            let channels = channels.into_iter().filter(|_| job == "notify");
            for (name, value) in channels.chain([("upstream", job), ("job", job)]) {
                finding.about.insert((name.to_owned(), value.to_owned()));
            }
        }
        let instance = labels.get("instance");
        let instance = instance.filter(|_| condition.labels().any(|name| name == "instance"));
        for part in instance.cloned().into_iter().chain(more) {
            if !part.is_empty() && !finding.detail.contains(&part) {
                finding.detail.push_str("; ");
                finding.detail.push_str(&part);
            }
        }
    }

    /// Puts consequences below their causes.
    fn grouped(mut self, evidence: &Evidence) -> Vec<Finding> {
        let order = |finding: &Finding| {
            let mut table = CONDITIONS.iter();
            table.position(|known| known.name == finding.condition.name)
        };
        for finding in &mut self.0 {
            if let Some(proof) = evidence.get(&finding.page) {
                finding.detail.push_str("; ");
                finding.detail.push_str(&proof.text);
                finding.about.extend(proof.about.iter().cloned());
            }
        }
        self.0.sort_by_key(order);
        let mut causes: Vec<Finding> = Vec::new();
        for finding in self.0 {
            let is_cause = |cause: &&mut Finding| {
                cause.condition.name != finding.condition.name
                    && !cause.about.is_disjoint(&finding.about)
            };
            match causes.iter_mut().find(is_cause) {
                Some(cause) => cause.consequences.push(finding),
                None => causes.push(finding),
            }
        }
        causes.sort_by_key(|finding| finding.condition.severity);
        causes
    }
}

fn of_process(process: &ProcessStatus, now: Timestamp, found: &mut Found) {
    let labels = process.labels(&[]);
    if let Some(error) = &process.error {
        return found.judge("ProcessDown", &labels, 0.0, Some(error.clone()));
    }
    if let Some(problem) = process.info["problem"].as_str() {
        let reason = format!("it rejects the console's token: {problem}");
        found.judge("ProcessDown", &labels, 0.0, Some(reason));
    }
    let value = |name| process.scrape.value(name).unwrap_or(f64::NAN);
    let used = value("process_open_fds") / value("process_max_fds");
    let told = process.info["now"].as_str().and_then(Timestamp::parse);
    let skew_s = told.map_or(0.0, |told| (told.0 - now.0).abs() as f64 / 1000.0);
    for (name, value, limit) in [
        ("DescriptorsLow", used, MAX_USED_DESCRIPTORS),
        ("ClocksDiffer", skew_s, MAX_SKEW_S),
    ] {
        if value > limit {
            found.judge(name, &labels, value, None);
        }
    }
    let parts = process.readiness["parts"].as_object();
    for (part, state) in parts.into_iter().flatten() {
        let state = state.as_str().unwrap_or("ok");
        let mut dependencies = process.scrape.of("postern_dependency_up");
        let is_found = dependencies.any(|it| it.label("dependency") == part && it.value == 0.0);
        if state != "ok" && !state.starts_with("degraded: ") && !is_found {
            let reason = format!("not ready: {part}: {state}");
            found.judge("ProcessDown", &labels, 0.0, Some(reason));
        }
    }
}

/// Returns why the readiness of a process does not call a partner good.
fn reason(process: &ProcessStatus, partner: &str) -> Option<String> {
    let part = process.readiness["parts"][partner].as_str()?;
    let reason = part.strip_prefix("degraded: ").unwrap_or(part);
    (reason != "ok" && !reason.is_empty()).then(|| reason.to_owned())
}

/// Adds the conditions of a route: too many of its requests fail, are rejected or take long, in the last
/// minute or in the last 10 s.
fn of_route(route: &str, views: [&Traffic; 2], before: Option<&Traffic>, found: &mut Found) {
    let (quantile, min_s, factor) = SLOW;
    let worst = |value: &dyn Fn(&Traffic) -> Option<f64>| {
        let values = views.iter().filter_map(|traffic| value(traffic));
        values.fold(0.0, f64::max)
    };
    let failed = worst(&|it| it.error_ratio().filter(|_| it.errors >= MIN_ERRORS));
    let rejected = worst(&|it| {
        it.rejection_ratio()
            .filter(|_| it.rejections >= MIN_REJECTIONS)
    });
    let slow = worst(&|it| {
        it.quantile(quantile)
            .filter(|_| it.requests >= MIN_COMPARED.0)
    });
    let is_failing = failed > MAX_ERROR_RATIO;
    // Scanners request paths that no route has.
    let is_rejecting = rejected > MAX_REJECTION_RATIO && route != NO_ROUTE;
    let before = before.filter(|before| before.requests >= MIN_COMPARED.1);
    let before = before.and_then(|before| before.quantile(quantile));
    let limit = before.map_or(f64::INFINITY, |before| min_s.max(factor * before));
    for (is_met, name, value) in [
        (is_failing, "RouteErrors", failed),
        (is_rejecting && !is_failing, "RouteRejections", rejected),
        (slow > limit, "RouteSlow", slow),
    ] {
        if is_met {
            let labels = Labels::from([("route".to_owned(), route.to_owned())]);
            found.judge(name, &labels, value, None);
        }
    }
}

/// Adds differences between replicas of one kind.
fn compare_replicas(processes: &[ProcessStatus], found: &mut Found) {
    type Fact = fn(&ProcessStatus) -> Option<String>;
    let facts: [(&'static str, Fact); 2] =
        [("ConfigDiffers", config_hash), ("VersionsDiffer", version)];
    for kind in ProcessKind::ALL {
        for (name, fact) in facts {
            let replicas = processes.iter().filter(|process| process.kind == kind);
            let values: BTreeSet<String> = replicas.filter_map(fact).collect();
            if values.len() > 1 {
                let labels = Labels::from([("job".to_owned(), kind.job().to_owned())]);
                let values = values.into_iter().collect::<Vec<_>>().join(", ");
                found.judge(name, &labels, 0.0, Some(values));
            }
        }
    }
}

#[cfg(test)]
mod tests;
