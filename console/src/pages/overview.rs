//! What is wrong now, the picture of the whole with its charts, and all processes.

use std::time::Duration;

use maud::{Markup, html};
use postern_core::clock::Timestamp;
use serde_json::{Value, json};

use super::gateway::ERROR_OBJECTIVE;
use super::picture::picture;
use super::{Context, heading, items};
use crate::charts::{Charts, Line, Unit, clock};
use crate::conditions::remedy;
use crate::config::ProcessKind::Gateway;
use crate::findings::Finding;
use crate::sampling::Monitor;
use crate::shell;
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::{Interval, REQUESTS};
use crate::widgets::Cell::{Mono, Number, Of, Text, Time};
use crate::widgets::{
    Column, Tone, badge, duration, mono, number, percent, plain, table, time, words,
};

/// Findings that are shown at once; the others are folded.
const MAX_FINDINGS: usize = 3;
/// Age from which figures are old: two samples were missed.
const MAX_AGE: Duration = Duration::from_secs(10);

pub(super) async fn render(context: &Context<'_>) -> Markup {
    let past = context.past().await;
    let now = context.state.sampler.now();
    context.state.sampler.read(|monitor| {
        html! {
            (heading("Overview"))
            div data-live="overview" {
                (age(monitor, now))
                (findings(monitor, now))
                (picture(monitor))
                (figures(&context.charts(monitor, past.as_ref())))
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

fn findings(monitor: &Monitor, now: Timestamp) -> Markup {
    let found = &monitor.findings;
    let (shown, folded) = found.split_at(found.len().min(MAX_FINDINGS));
    html! {
        @if found.is_empty() && !monitor.processes.is_empty() {
            div.alert.good { strong { "Nothing is wrong" } span { "all " (monitor.processes.len()) " processes answer" } }
        }
        @for finding in shown { (alert(finding, now)) }
        @if !folded.is_empty() { details.folded {
            summary { "Further problems: " (folded.len()) }
            @for finding in folded { (alert(finding, now)) }
        } }
    }
}

fn alert(finding: &Finding, now: Timestamp) -> Markup {
    html! {
        div.alert.warn[finding.condition.severity != "page"] {
            (problem(finding))
            @if let Some(since) = finding.since {
                span.since { "since " (clock(since, 8)) ", " (duration(now.since(since).as_secs_f64())) }
            }
            @if let Some(remedy) = remedy(finding.condition.name) { span.remedy { strong { "What to do: " } (remedy) } }
            @if !finding.consequences.is_empty() { details.consequences {
                summary { "Consequences: " (finding.consequences.len()) }
                ul.plain { @for below in &finding.consequences { li { (problem(below)) } } }
            } }
        }
    }
}

/// Returns what is wrong, why, and the page on which to go on.
fn problem(finding: &Finding) -> Markup {
    let path = finding.page.split('?').next().unwrap_or_default();
    html! {
        strong { (finding.condition.title) " " code { (finding.subject) } }
        span { (finding.detail) }
        a href=(finding.page) { "Open " (shell::title(path)) }
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

/// Returns the page of all processes, with what they say of their parts, and of the keys of issuers.
pub(super) async fn processes(context: &Context<'_>) -> Markup {
    const ISSUERS: &[Column] = &[
        ("Issuer", Text("issuer")),
        ("Read", Time("lastRefresh")),
        ("Keys", Of(keys)),
        ("Error", Text("lastError")),
    ];
    const PROCESSES: &[Column] = &[
        ("Process", Mono("name")),
        ("Kind", Text("kind")),
        ("State", Of(readiness)),
        ("Version", Text("version")),
        ("Configuration", Mono("configuration")),
        ("Up", Number("up")),
        ("CPU", Number("cpu")),
        ("Memory", Number("memory")),
    ];
    let issuers = context.ask(Gateway, "/admin/keys").await;
    let now = context.state.sampler.now();
    context.state.sampler.read(|monitor| {
        let rows = monitor.processes.iter().map(|process| row(process, now));
        html! {
            (heading("Processes"))
            div data-live="processes" {
                (age(monitor, now))
                section.panel { (table("Processes", &rows.collect::<Vec<_>>(), PROCESSES, "No process is known yet.")) }
                section.panel { h2 { "Keys of the issuers of tokens" } @match &issuers {
                    Err(message) => (message),
                    Ok(answer) => (table("Issuers", items(&answer["issuers"]), ISSUERS, "No issuer is trusted.")),
                } }
            }
        }
    })
}

/// Returns the ids of the keys of an issuer with their algorithms.
fn keys(issuer: &Value) -> Markup {
    html! { @for key in items(&issuer["keys"]) { div { (mono(&plain(&key["kid"]))) " " span.muted { (plain(&key["alg"])) } } } }
}

fn row(process: &ProcessStatus, now: Timestamp) -> Value {
    let value = |metric| process.scrape.value(metric);
    let age = value("process_start_time_seconds").map(|at| now.0 as f64 / 1000.0 - at);
    let memory = value("process_resident_memory_bytes").map(|bytes| (bytes / 1_048_576.0).round());
    let hash = config_hash(process).unwrap_or_default();
    json!({
        "name": process.name,
        "kind": process.kind.as_str(),
        "readiness": process.readiness,
        "error": process.error,
        "answeredAt": process.answered_at.map(|at| at.to_string()),
        "version": version(process),
        "configuration": hash.get(..8).unwrap_or(&hash),
        "up": age.map(|age| duration(age.max(0.0))),
        "cpu": process.cpu.map(percent),
        "memory": memory.map(|memory| format!("{} MiB", number(memory))),
    })
}

/// Returns whether a process is ready, and why not.
fn readiness(process: &Value) -> Markup {
    let [error, answered_at] = ["error", "answeredAt"].map(|name| plain(&process[name]));
    let parts = process["readiness"]["parts"].as_object();
    let parts = parts.into_iter().flatten();
    let reasons = parts.filter(|(_, reason)| *reason != "ok" && error.is_empty());
    let (tone, word) = match process["readiness"]["ready"].as_bool() {
        _ if !error.is_empty() => (Tone::Bad, "unreachable"),
        Some(true) if reasons.clone().next().is_none() => (Tone::Ok, "ready"),
        Some(true) => (Tone::Warn, "degraded"),
        Some(false) => (Tone::Bad, "not ready"),
        None => (Tone::Plain, "unknown"),
    };
    html! {
        (badge(tone, word))
        @if !error.is_empty() { " " (error) ", last answer " @if answered_at.is_empty() { "never" } @else { (time(&answered_at)) } }
        @for (part, reason) in reasons { div.why { (words(part)) ": " (plain(reason)) } }
    }
}
