//! What is wrong now, the picture of the whole with its charts, and all processes.

use std::cmp::Ordering;
use std::time::Duration;

use maud::{Markup, html};
use postern_core::clock::Timestamp;
use serde_json::{Value, json};

use super::gateway::{ERROR_OBJECTIVE, TRAFFIC, with_traffic};
use super::picture::picture;
use super::{Context, heading};
use crate::charts::{Charts, Line, Unit};
use crate::config::ProcessKind::Gateway;
use crate::findings::Finding;
use crate::sampling::{Found, Monitor};
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::{Interval, REQUESTS, ROUTE};
use crate::widgets::Cell::{Link, Mono, Number, Of, Text};
use crate::widgets::{Column, Tone, badge, bytes, duration, percent, plain, table, time};

/// Routes in the table.
const MAX_ROUTES: usize = 8;
/// Findings that are shown at once; the others are folded.
const MAX_FINDINGS: usize = 3;
/// Age from which figures are old: two samples were missed.
const MAX_AGE: Duration = Duration::from_secs(10);

pub(super) fn render(context: &Context<'_>) -> Markup {
    let now = context.sampler.now();
    context.sampler.read(|monitor| {
        let found = monitor.findings();
        html! {
            (heading("Overview"))
            div data-live="overview" {
                (age(monitor, now))
                (findings(monitor, &found, now))
                (picture(monitor, &found))
                (figures(&context.charts(monitor)))
                (routes(monitor))
            }
        }
    })
}

/// Says that the figures are old, or that there are none yet.
fn age(monitor: &Monitor, now: Timestamp) -> Markup {
    let age = monitor.sampled_at.map(|at| now.since(at));
    html! { @match age {
        None => p.muted { "The first sample is being taken." },
        Some(age) => @if age >= MAX_AGE {
            div.alert { strong { "The console does not sample" } span { "the figures are " (duration(age.as_secs_f64())) " old" } }
        }
    } }
}

/// Returns the time of day of an instant.
fn clock(at: Timestamp) -> Markup {
    let text = at.to_string();
    html! { time datetime=(text) title=(text) { (text.get(11..19).unwrap_or_default()) } }
}

fn findings(monitor: &Monitor, found: &[Found], now: Timestamp) -> Markup {
    let (shown, folded) = found.split_at(found.len().min(MAX_FINDINGS));
    html! {
        @if found.is_empty() && !monitor.processes.is_empty() {
            div.alert.good { strong { "Nothing is wrong" } span { (monitor.processes.len()) " processes answer" } }
        }
        @for (finding, since) in shown { (alert(finding, *since, now)) }
        @if !folded.is_empty() { details.folded {
            summary { (folded.len()) " further problems" }
            @for (finding, since) in folded { (alert(finding, *since, now)) }
        } }
    }
}

fn alert(finding: &Finding, since: Option<Timestamp>, now: Timestamp) -> Markup {
    let class = match finding.condition.severity {
        "page" => "alert",
        _ => "alert warn",
    };
    html! {
        div class=(class) {
            (problem(finding))
            @if let Some(since) = since {
                span.since { "since " (clock(since)) ", " (duration(now.since(since).as_secs_f64())) }
            }
            @if !finding.consequences.is_empty() { details.consequences {
                summary { (finding.consequences.len()) " consequences" }
                ul.plain { @for below in &finding.consequences { li { (problem(below)) } } }
            } }
        }
    }
}

/// Returns what is wrong, why, and the page on which to go on.
fn problem(finding: &Finding) -> Markup {
    let page = match finding.page.as_str() {
        "/" => "/processes",
        page => page,
    };
    let name = page
        .split('?')
        .next()
        .unwrap_or_default()
        .replace(['/', '-'], " ");
    html! {
        strong { (finding.condition.title) " " code { (finding.subject) } }
        span { (finding.detail) }
        a href=(page) { "Open" (name) }
    }
}

fn figures(charts: &Charts<'_>) -> Markup {
    const RATE: &[Line] = &[("", |it| it.per_second(Gateway, &it.part(REQUESTS, "")))];
    const ERRORS: &[Line] = &[("", |it| it.part(REQUESTS, "").error_ratio())];
    const LATENCY: &[Line] = &[
        ("p50", |it| it.part(REQUESTS, "").quantile(0.5)),
        ("p99", |it| it.part(REQUESTS, "").quantile(0.99)),
    ];
    const WAITING: &[Line] = &[("", Interval::all_waiting)];
    html! {
        (charts.ranges("/"))
        div.grid.charts {
            (charts.chart("Requests", Unit::PerSecond, None, RATE))
            (charts.chart("Errors (5xx)", Unit::Ratio, Some(ERROR_OBJECTIVE), ERRORS))
            (charts.chart("Latency", Unit::Seconds, None, LATENCY))
            (charts.chart("Waiting notifications", Unit::Count, None, WAITING))
        }
    }
}

/// Returns the routes with the most errors.
fn routes(monitor: &Monitor) -> Markup {
    const COLUMNS: &[Column] = &[
        ("Route", Link("/routes?q=", "name")),
        TRAFFIC[0],
        TRAFFIC[1],
        TRAFFIC[2],
        TRAFFIC[3],
    ];
    let minute = monitor.minute();
    let mut routes: Vec<_> = minute.of_kind(ROUTE).collect();
    routes.retain(|(_, traffic)| traffic.requests > 0.0);
    routes.sort_by(|(_, left), (_, right)| {
        let by_errors = right.error_ratio().partial_cmp(&left.error_ratio());
        let by_requests = right.requests.total_cmp(&left.requests);
        by_errors.unwrap_or(Ordering::Equal).then(by_requests)
    });
    let shown = routes.iter().take(MAX_ROUTES);
    let shown = shown.map(|(name, _)| with_traffic(&json!({ "name": name }), &minute));
    html! {
        section.panel {
            h2 { "Routes by errors, last minute" @if routes.len() > MAX_ROUTES { span.muted { ": " (MAX_ROUTES) " of " a href="/routes" { (routes.len()) } } } }
            (table("Routes", &shown.collect::<Vec<_>>(), COLUMNS, "No requests in the last minute."))
        }
    }
}

/// Returns the page of all processes, with what they say of their parts.
pub(super) fn processes(context: &Context<'_>) -> Markup {
    const COLUMNS: &[Column] = &[
        ("Process", Mono("name")),
        ("Kind", Text("kind")),
        ("State", Of(readiness)),
        ("Version", Text("version")),
        ("Configuration", Mono("hash")),
        ("Up", Number("up")),
        ("CPU", Number("cpu")),
        ("Memory", Number("memory")),
    ];
    let now = context.sampler.now();
    context.sampler.read(|monitor| {
        let rows = monitor.processes.iter().map(|process| row(process, now));
        html! {
            (heading("Processes"))
            div data-live="processes" {
                (age(monitor, now))
                section.panel { (table("Processes", &rows.collect::<Vec<_>>(), COLUMNS, "No process is configured.")) }
            }
        }
    })
}

fn row(process: &ProcessStatus, now: Timestamp) -> Value {
    let value = |metric| process.scrape.value(metric);
    let started = value("process_start_time_seconds");
    let hash = config_hash(process).unwrap_or_default();
    json!({
        "name": process.name,
        "kind": process.kind.as_str(),
        "error": process.error,
        "answeredAt": process.answered_at.map(|at| at.to_string()),
        "readiness": process.readiness,
        "version": version(process),
        "hash": hash.get(..8).unwrap_or(&hash),
        "up": started.map(|at| duration((now.0 as f64 / 1000.0 - at).max(0.0))),
        "cpu": process.cpu.map(percent),
        "memory": value("process_resident_memory_bytes").map(bytes),
    })
}

/// Returns whether a process is ready, and why not.
fn readiness(process: &Value) -> Markup {
    let (error, readiness) = (plain(&process["error"]), &process["readiness"]);
    let parts = readiness["parts"].as_object().into_iter().flatten();
    let reasons = parts.filter(|(_, reason)| *reason != "ok" && error.is_empty());
    let (tone, word) = match readiness["ready"].as_bool() {
        _ if !error.is_empty() => (Tone::Bad, "unreachable"),
        Some(true) if reasons.clone().next().is_none() => (Tone::Ok, "ready"),
        Some(true) => (Tone::Warn, "degraded"),
        Some(false) => (Tone::Bad, "not ready"),
        None => (Tone::Plain, "unknown"),
    };
    html! {
        (badge(tone, word))
        @if !error.is_empty() { " " (error) ", last answer " (time(&plain(&process["answeredAt"]))) }
        @for (part, reason) in reasons { div.why { (part) ": " (plain(reason)) } }
    }
}
