//! One picture of the whole: clients, the gateway, the services behind it, and what these need.
//!
//! A part is ok only if something tells so and no finding concerns it: what no process tells is unknown.
//! Depends on `charts`, `config`, `findings`, `sampling`, `traffic` and `widgets`.

use std::collections::BTreeSet;

use maud::{Markup, html};

use crate::actions::path_segment;
use crate::charts::Unit;
use crate::config::ProcessKind::{self, Auth, Gateway, Notify};
use crate::findings::Finding;
use crate::sampling::Monitor;
use crate::status::ProcessStatus;
use crate::traffic::{Interval, POOL, PROVIDER, REQUESTS, UPSTREAM};
use crate::widgets::{duration, percent};

/// Services and providers in the picture: the worst, and those with the most calls.
const MAX_PARTS: usize = 8;
const NOBODY: &str = "no process reports it";

/// The health of a part. Each has a word, and in the style a colour and a shape: circle, diamond, triangle
/// and square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Ok,
    Unknown,
    Degraded,
    Failing,
}

/// A part of the picture.
#[derive(Debug)]
struct Part {
    name: String,
    /// The page about it.
    page: &'static str,
    health: Health,
    /// Why it is not ok.
    reason: String,
    rate: f64,
    figures: Vec<String>,
    /// The services that need it; empty if all parts before it do.
    needed_by: &'static [ProcessKind],
}

/// What the parts are made of.
struct Source<'a> {
    monitor: &'a Monitor,
    minute: Interval,
}

/// Returns the picture.
pub(super) fn picture(monitor: &Monitor) -> Markup {
    let source = Source::of(monitor);
    let columns = [
        vec![source.clients()],
        vec![source.gateway()],
        source.services(),
        source.needs(),
    ];
    html! {
        div.panel.picture role="group" aria-label="All parts and their health" {
            @for (index, column) in columns.iter().enumerate() {
                @if index > 0 { (wires(&columns[index - 1], column)) }
                (list(column))
            }
        }
    }
}

/// Returns the providers of notifications.
pub(super) fn providers(monitor: &Monitor) -> Markup {
    html! { div.parts { (list(&Source::of(monitor).providers())) } }
}

fn list(parts: &[Part]) -> Markup {
    html! { ul { @for part in parts { li { (part.node()) } } } }
}

/// Returns the lines from one column to the next, whose parts have equal heights.
fn wires(from: &[Part], to: &[Part]) -> Markup {
    let middle = |index: usize, parts: &[Part]| (index as f64 + 0.5) * 100.0 / parts.len() as f64;
    html! {
        svg.wires viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" {
            @for (left, service) in from.iter().enumerate() {
                @for (right, part) in to.iter().enumerate().filter(|(_, part)| part.is_needed_by(&service.name)) {
                    @let (start, end) = (middle(left, from), middle(right, to));
                    path class=(part.health.word()) vector-effect="non-scaling-stroke" d=(format!("M0 {start:.1}C50 {start:.1} 50 {end:.1} 100 {end:.1}")) {}
                }
            }
        }
    }
}

/// Replaces the parts beyond [`MAX_PARTS`], those without a problem and with the fewest calls, by one.
fn fold(mut parts: Vec<Part>) -> Vec<Part> {
    if parts.len() > MAX_PARTS {
        let problem = |part: &Part| part.health.max(Health::Unknown);
        parts.sort_by(|left, right| {
            let by_problem = problem(right).cmp(&problem(left));
            by_problem.then(right.rate.total_cmp(&left.rate))
        });
        let rest = parts.split_off(MAX_PARTS - 1);
        let name = format!("{} more", rest.len());
        if let Some(mut worst) = rest.into_iter().max_by_key(|part| part.health) {
            (worst.name, worst.figures) = (name, Vec::new());
            parts.push(worst);
        }
    }
    parts
}

// === impl Health ===

impl Health {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Failing => "failing",
        }
    }
}

// === impl Source ===

impl<'a> Source<'a> {
    fn of(monitor: &'a Monitor) -> Self {
        let minute = monitor.minute();
        Self { monitor, minute }
    }

    fn replicas(&self, kind: ProcessKind) -> impl Iterator<Item = &ProcessStatus> {
        let processes = self.monitor.processes.iter();
        processes.filter(move |process| process.kind == kind)
    }

    fn is_answering(&self, kind: ProcessKind) -> bool {
        self.replicas(kind).any(|process| process.error.is_none())
    }

    fn clients(&self) -> Part {
        let requests = self.minute.part(REQUESTS, "").requests;
        let idle = Some("no request in the last minute").filter(|_| requests == 0.0);
        let reason = if self.is_answering(Gateway) {
            idle
        } else {
            Some(NOBODY)
        };
        let concerns = |it: &Finding| it.condition.name.starts_with("Route");
        self.part("Clients", "/requests", reason, None, concerns)
    }

    fn gateway(&self) -> Part {
        let calls = Some((Gateway, REQUESTS, ""));
        let concerns = |it: &Finding| {
            let is_own = it.condition.group == "gateway" && it.about("upstream").next().is_none();
            is_own || it.about("job").any(|job| job == "proxy")
        };
        let reason = self.not_ready(Gateway);
        self.part("Gateway", "/routes", reason, calls, concerns)
    }

    /// Returns why it is not known that a process of a kind is ready.
    fn not_ready(&self, kind: ProcessKind) -> Option<&'static str> {
        let is_ready = |it: &ProcessStatus| it.error.is_none() && it.readiness["ready"] == true;
        let is_known = self.replicas(kind).any(is_ready);
        (!is_known).then_some(NOBODY)
    }

    /// Returns our own services and the other upstreams of the gateways.
    fn services(&self) -> Vec<Part> {
        let mut names = self.labels(Gateway, ["postern_endpoints", "upstream"]);
        for kind in [Auth, Notify] {
            if self.replicas(kind).next().is_some() {
                names.insert(kind.as_str());
            }
        }
        fold(names.into_iter().map(|name| self.service(name)).collect())
    }

    /// Returns the values of a label of a metric of processes.
    fn labels(&self, kind: ProcessKind, [metric, label]: [&'static str; 2]) -> BTreeSet<&str> {
        let series = self.replicas(kind).flat_map(move |it| it.scrape.of(metric));
        series.map(|series| series.label(label)).collect()
    }

    fn service(&self, name: &str) -> Part {
        let calls = self.minute.part(UPSTREAM, name);
        let (page, reason) = match name {
            "auth" => ("/sign-ins", self.not_ready(Auth)),
            "notify" => ("/notifications", self.not_ready(Notify)),
            _ if !self.is_answering(Gateway) => ("/upstreams", Some(NOBODY)),
            _ if calls.settled() > calls.errors => ("/upstreams", None),
            _ => ("/upstreams", Some("no answer in the last minute")),
        };
        self.part(name, page, reason, Some((Gateway, UPSTREAM, name)), |it| {
            let is_own = it.condition.group == name && it.condition.page != "/providers";
            is_own || it.about("upstream").any(|upstream| upstream == name)
        })
    }

    /// Returns what our services need.
    fn needs(&self) -> Vec<Part> {
        let pool = self.need("Identity pool", "/sign-ins", "identity_pool", &[Auth]);
        let [database, cache] = [("Database", "database"), ("Cache", "cache")]
            .map(|(name, label)| self.need(name, "/processes", label, &[Auth, Notify]));
        let all = [pool, database, cache].into_iter();
        all.chain(fold(self.providers())).collect()
    }

    /// Returns a dependency, of which all processes that need it must tell.
    fn need(
        &self,
        name: &str,
        page: &'static str,
        label: &str,
        needed_by: &'static [ProcessKind],
    ) -> Part {
        let tells = |process: &ProcessStatus| {
            let mut series = process.scrape.of("postern_dependency_up");
            process.error.is_none() && series.any(|it| it.label("dependency") == label)
        };
        let processes = needed_by.iter().flat_map(|kind| self.replicas(*kind));
        let told: Vec<bool> = processes.map(tells).collect();
        let is_known = !told.is_empty() && !told.contains(&false);
        let reason = (!is_known).then_some(NOBODY);
        let is_pool = label == "identity_pool";
        let calls = is_pool.then_some((Auth, POOL, ""));
        let part = self.part(name, page, reason, calls, |it| {
            let is_pool = is_pool && it.condition.name == "IdentityPoolErrors";
            is_pool || it.about("dependency").any(|name| name == label)
        });
        Part { needed_by, ..part }
    }

    fn providers(&self) -> Vec<Part> {
        let mut names = self.labels(Notify, ["postern_notify_provider_up", "provider"]);
        let is_known = self.is_answering(Notify) && !names.is_empty();
        let reason = (!is_known).then_some(NOBODY);
        if names.is_empty() {
            names.insert("Providers");
        }
        let part = |name| {
            let calls = Some((Notify, PROVIDER, name));
            let mut part = self.part(name, "/providers", reason, calls, |it| {
                it.condition.page == "/providers" && it.about("provider").any(|it| it == name)
            });
            part.needed_by = &[Notify];
            part
        };
        names.into_iter().map(part).collect()
    }

    /// Returns a part with rate, latency and failures of its calls in the last minute, if processes that
    /// count them answer. It is as bad as the findings that concern it, with the worst as the reason;
    /// without any it is ok, unless there is a reason for which that is `unknown`.
    fn part(
        &self,
        name: &str,
        page: &'static str,
        unknown: Option<&str>,
        calls: Option<(ProcessKind, &'static str, &str)>,
        concerns: impl Fn(&Finding) -> bool,
    ) -> Part {
        let mut part = Part {
            name: name.to_owned(),
            page,
            health: unknown.map_or(Health::Ok, |_| Health::Unknown),
            reason: unknown.unwrap_or_default().to_owned(),
            rate: 0.0,
            figures: Vec::new(),
            needed_by: &[],
        };
        let calls = calls.filter(|(counted_by, ..)| self.is_answering(*counted_by));
        if let Some((counted_by, kind, name)) = calls {
            let calls = self.minute.part(kind, name);
            let rate = self.minute.per_second(counted_by, &calls);
            let errors = calls.error_ratio().filter(|ratio| *ratio > 0.0);
            part.rate = rate.unwrap_or(0.0);
            let p99 = calls.quantile(0.99);
            let figures = [
                rate.map(|rate| Unit::PerSecond.text(rate)),
                p99.map(|p99| format!("p99 {}", duration(p99))),
                errors.map(|errors| format!("{} errors", percent(errors))),
            ];
            part.figures.extend(figures.into_iter().flatten());
        }
        let all = self.monitor.findings.iter().flat_map(Finding::all);
        for finding in all.filter(|it| concerns(it)) {
            // Another replica does the work of one that is away.
            let is_replaced = finding.condition.name == "ProcessDown" && part.health == Health::Ok;
            let health = match finding.condition.severity {
                "page" if !is_replaced => Health::Failing,
                _ => Health::Degraded,
            };
            if health > part.health {
                part.health = health;
                part.reason = finding.condition.title.to_owned();
            }
        }
        part
    }
}

// === impl Part ===

impl Part {
    fn is_needed_by(&self, service: &str) -> bool {
        let mut kinds = self.needed_by.iter();
        self.needed_by.is_empty() || kinds.any(|kind| kind.as_str() == service)
    }

    fn node(&self) -> Markup {
        let word = self.health.word();
        // One upstream of the page, not those that are folded.
        let is_one = self.page == "/upstreams" && !self.figures.is_empty();
        html! {
            a class={ "part " (word) } href={ (self.page) @if is_one { "?q=" (path_segment(&self.name)) } } {
                span.name { strong { (self.name) } " " span.word { (word) } }
                @if !self.reason.is_empty() { span.reason { (self.reason) } }
                @if !self.figures.is_empty() { span.figures { @for figure in &self.figures { span { (figure) } " " } } }
            }
        }
    }
}

#[cfg(test)]
mod tests;
