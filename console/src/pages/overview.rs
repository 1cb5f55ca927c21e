//! What is wrong now, the figures of the last hour, and all processes.

use std::time::Duration;

use maud::{Markup, html};
use postern_core::clock::Timestamp;
use serde_json::Value;

use super::{Context, heading};
use crate::actions::path_segment;
use crate::config::ProcessKind;
use crate::findings::Finding;
use crate::sampling::{Monitor, Point};
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::OfRoute;
use crate::widgets::{
    CHANNELS, Tone, badge, bytes, chart_minutes, duration, mono, number, percent, sparkline, time,
};

const PRIORITIES: [&str; 4] = ["CRITICAL", "HIGH", "NORMAL", "LOW"];
/// Routes in the table.
const MAX_ROUTES: usize = 8;
/// Error ratio that the chart marks.
const ERROR_THRESHOLD: f64 = 0.001;
/// Age from which figures are old: two samples were missed.
const MAX_AGE: Duration = Duration::from_secs(10);

pub(super) fn render(context: &Context<'_>) -> Markup {
    let now = context.sampler.now();
    context.sampler.read(|monitor| {
        html! {
            (heading("Overview"))
            div data-live="overview" {
                (age(monitor, now))
                (findings(monitor, now))
                @if monitor.processes.is_empty() { p.muted { "The first sample is being taken." } }
                div.grid {
                    (figures(monitor))
                    (routes(monitor))
                    (lanes(monitor))
                    (processes(monitor, now))
                }
            }
        }
    })
}

/// Returns when the figures were taken, in red if that is too long ago.
fn age(monitor: &Monitor, now: Timestamp) -> Markup {
    let Some(at) = monitor.sampled_at else {
        return html! {};
    };
    let age = now.since(at);
    html! {
        @if age >= MAX_AGE {
            div.alert { strong { "The console does not sample" } span { "the figures are " (duration(age.as_secs_f64())) " old" } }
        }
        p.muted { "Sampled at " (clock(at)) ", every 5 s." }
    }
}

/// Returns the time of day of an instant.
fn clock(at: Timestamp) -> Markup {
    let text = at.to_string();
    html! { time datetime=(text) title=(text) { (text.get(11..19).unwrap_or_default()) } }
}

fn findings(monitor: &Monitor, now: Timestamp) -> Markup {
    let found = monitor.findings();
    html! {
        @if found.is_empty() && !monitor.processes.is_empty() {
            div.alert.good { strong { "Nothing is wrong" } span { (monitor.processes.len()) " processes answer" } }
        }
        @for (finding, since) in &found { (alert(finding, *since, now)) }
    }
}

fn alert(finding: &Finding, since: Option<Timestamp>, now: Timestamp) -> Markup {
    let class = match finding.condition.severity {
        "page" => "alert",
        _ => "alert warn",
    };
    html! {
        div class=(class) {
            strong { (finding.condition.title) " " code { (finding.subject) } }
            span { (finding.detail) }
            @if finding.page != "/" { a href=(finding.page) { "Show" } }
            @if let Some(since) = since {
                span.since { "since " (clock(since)) ", " (duration(now.since(since).as_secs_f64())) }
            }
            @if !finding.consequences.is_empty() { details.consequences {
                summary { (finding.consequences.len()) " consequences" }
                ul.plain { @for below in &finding.consequences { li {
                    strong { (below.condition.title) " " code { (below.subject) } }
                    span { (below.detail) }
                    @if below.page != "/" { a href=(below.page) { "Show" } }
                } } }
            } }
        }
    }
}

fn figures(monitor: &Monitor) -> Markup {
    let (rate, total) = monitor.total();
    let series =
        |value: fn(&Point) -> Option<f64>| monitor.points.iter().map(value).collect::<Vec<_>>();
    let unknown = || "–".to_owned();
    let latency = |quantile| total.quantile(quantile).map_or_else(unknown, duration);
    let last = monitor.points.back();
    let waiting = last.and_then(|point| point.waiting);
    let oldest = last.and_then(|point| point.oldest_s);
    let errors = total.error_ratio().map_or_else(unknown, percent);
    let period = match chart_minutes(monitor.points.len()) {
        60 => "last hour".to_owned(),
        minutes => format!("last {minutes} minutes"),
    };
    let chart = |what: &str, value: fn(&Point) -> Option<f64>, threshold| {
        sparkline(&format!("{what}, {period}"), &series(value), threshold)
    };
    let (gateway, notify) = (
        monitor.silence(ProcessKind::Gateway),
        monitor.silence(ProcessKind::Notify),
    );
    html! {
        (figure("Requests", &period, gateway, &format!("{} /s", number(rate)),
            &chart("Requests per second", |point| point.requests_per_s, None)))
        (figure("Errors (5xx)", "line at 0.1 %", gateway, &errors,
            &chart("Error ratio", |point| point.error_ratio, Some(ERROR_THRESHOLD))))
        (figure("Latency p50 · p99", "chart: p99", gateway, &format!("{} · {}", latency(0.5), latency(0.99)),
            &chart("Latency p99", |point| point.p99_s, None)))
        (figure("Waiting", &oldest_hint(waiting, oldest), notify, &waiting.map_or_else(unknown, number),
            &chart("Waiting notifications", |point| point.waiting, None)))
    }
}

/// Returns the age of the oldest waiting notification. Of those that are counted, all may be in
/// delivery.
fn oldest_hint(waiting: Option<f64>, oldest: Option<f64>) -> String {
    match (waiting, oldest) {
        (_, None) => "oldest unknown".to_owned(),
        (Some(waiting), Some(oldest)) if waiting > 0.0 && oldest <= 0.0 => {
            "all in delivery".to_owned()
        }
        (_, Some(oldest)) => format!("oldest {}", duration(oldest)),
    }
}

/// Returns a figure; `silence` says since when nobody tells it.
fn figure(
    label: &str,
    hint: &str,
    silence: Option<Option<Timestamp>>,
    value: &str,
    chart: &Markup,
) -> Markup {
    html! {
        section.panel.old[silence.is_some()] {
            h2.label { span { (label) } span { (hint) } }
            div.figure { (value) }
            @if let Some(last) = silence {
                p.bad { @match last { Some(at) => { "Old: no answer since " (clock(at)) }, None => "Unknown: no answer yet" } }
            }
            (chart)
        }
    }
}

fn routes(monitor: &Monitor) -> Markup {
    let mut routes: Vec<_> = monitor.routes().into_iter().collect();
    routes.retain(|(_, route)| route.requests_per_s > 0.0);
    routes.sort_by(|(_, left), (_, right)| {
        let ratio = |route: &OfRoute| route.minute.error_ratio().unwrap_or(0.0);
        ratio(right)
            .total_cmp(&ratio(left))
            .then(right.requests_per_s.total_cmp(&left.requests_per_s))
    });
    html! {
        section.panel.wide.old[monitor.silence(ProcessKind::Gateway).is_some()] {
            h2 { "Routes by error ratio, last minute" }
            @if routes.is_empty() { p.muted { "No requests in the last minute." } }
            @else { div.scroll tabindex="0" role="region" aria-label="Routes" { table {
                thead { tr { th scope="col" { "Route" } th.num scope="col" { "req/s" } th.num scope="col" { "4xx" } th.num scope="col" { "5xx" } th.num scope="col" { "p99" } } }
                tbody { @for (route, of_route) in routes.iter().take(MAX_ROUTES) {
                    @let (rate, traffic) = (of_route.requests_per_s, &of_route.minute);
                    @let failed = traffic.error_ratio().unwrap_or(0.0);
                    @let rejected = traffic.rejection_ratio().unwrap_or(0.0);
                    tr {
                        td { a href={ "/routes?q=" (path_segment(route)) } { (route) } }
                        td.num { (number((rate * 10.0).round() / 10.0)) }
                        td.num { (share(route, "4xx", rejected, false)) }
                        td.num { (share(route, "5xx", failed, failed > ERROR_THRESHOLD)) }
                        td.num { (traffic.quantile(0.99).map_or("–".to_owned(), duration)) }
                    }
                } }
            } } }
        }
    }
}

/// Returns the share of responses of a class, with a link to the requests that get one.
fn share(route: &str, class: &str, ratio: f64, is_bad: bool) -> Markup {
    let text = percent(ratio);
    let page = format!("/requests?route={}&status={class}", path_segment(route));
    html! {
        @if ratio <= 0.0 { (text) }
        @else { a href=(page) { @if is_bad { (badge(Tone::Bad, &text)) } @else { (text) } } }
    }
}

fn lanes(monitor: &Monitor) -> Markup {
    let mut all = monitor.processes.iter();
    let notify =
        all.find(|process| process.kind == ProcessKind::Notify && process.answered_at.is_some());
    html! {
        section.panel.wide.old[monitor.silence(ProcessKind::Notify).is_some()] {
            h2 { "Waiting by channel and priority" }
            @if let Some(process) = notify {
                div.scroll tabindex="0" role="region" aria-label="Lanes" { table {
                    thead { tr { th scope="col" { "Channel" } @for priority in PRIORITIES { th.num scope="col" { (priority) } } } }
                    tbody { @for channel in CHANNELS { tr {
                        th scope="row" { (channel) }
                        @for priority in PRIORITIES { td.num { (lane(process, channel, priority)) } }
                    } } }
                } }
            } @else { p.muted { "No notification service answers." } }
        }
    }
}

fn lane(process: &ProcessStatus, channel: &str, priority: &str) -> Markup {
    let values = |name: &'static str| {
        let of_lane = process.scrape.of(name).filter(move |series| {
            series.label("channel") == channel && series.label("priority") == priority
        });
        of_lane.map(|series| series.value).collect::<Vec<f64>>()
    };
    let rows: f64 = values("postern_notify_queue_rows").iter().sum();
    let oldest = values("postern_notify_oldest_waiting_seconds").into_iter();
    let oldest = oldest.fold(0.0, f64::max);
    let mut throttles = process.scrape.of("postern_notify_low_throttle");
    let is_paused = priority == "LOW"
        && throttles.any(|series| series.label("channel") == channel && series.value == 2.0);
    html! {
        (number(rows))
        @if oldest >= 1.0 { br; small.muted { (duration(oldest)) } }
        @if is_paused { " " (badge(Tone::Warn, "paused")) }
    }
}

fn processes(monitor: &Monitor, now: Timestamp) -> Markup {
    html! {
        section.panel.full {
            h2 { "Processes" }
            div.scroll tabindex="0" role="region" aria-label="Processes" { table {
                thead { tr {
                    th scope="col" { "Process" } th scope="col" { "Kind" } th scope="col" { "Version" } th scope="col" { "Configuration" }
                    th scope="col" { "Up" } th.num scope="col" { "CPU" } th.num scope="col" { "Memory" } th scope="col" { "State" }
                } }
                tbody { @for process in &monitor.processes { (process_row(process, now)) } }
            } }
        }
    }
}

fn process_row(process: &ProcessStatus, now: Timestamp) -> Markup {
    let started = process.scrape.value("process_start_time_seconds");
    let now_s = now.since(Timestamp(0)).as_secs_f64();
    let memory = process.scrape.value("process_resident_memory_bytes");
    let hash = config_hash(process).unwrap_or_default();
    html! {
        tr.old[process.error.is_some()] {
            td { (mono(&process.name)) }
            td { (process.kind.as_str()) }
            td { (version(process).unwrap_or_else(|| "–".to_owned())) }
            td { @if hash.is_empty() { span.muted { "–" } } @else { (mono(hash.get(..8).unwrap_or(&hash))) } }
            td { @match started { Some(at) => span title=(Timestamp::from_unix_seconds(whole(at))) { (duration((now_s - at).max(0.0))) }, None => "–" } }
            td.num { (process.cpu.map_or("–".to_owned(), percent)) }
            td.num { (memory.map_or("–".to_owned(), bytes)) }
            td { (readiness(process)) }
        }
    }
}

/// Converts seconds of the process start, which are whole and in the range of `i64`.
fn whole(seconds: f64) -> i64 {
    format!("{seconds:.0}").parse().unwrap_or(0)
}

fn readiness(process: &ProcessStatus) -> Markup {
    if process.error.is_some() {
        let last = process.answered_at;
        return html! { (badge(Tone::Bad, "unreachable")) @if let Some(at) = last { " since " (clock(at)) } };
    }
    let degraded = process.readiness["degraded"].as_array();
    let degraded = degraded.into_iter().flatten().filter_map(Value::as_str);
    let degraded = degraded.collect::<Vec<_>>().join(", ");
    match process.readiness["ready"].as_bool() {
        Some(true) if degraded.is_empty() => badge(Tone::Ok, "ready"),
        Some(true) => badge(Tone::Warn, &format!("degraded: {degraded}")),
        Some(false) => badge(Tone::Bad, "not ready"),
        None => html! { (badge(Tone::Plain, "unknown")) (time("")) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_in_delivery_have_no_oldest() {
        assert_eq!(oldest_hint(Some(0.0), Some(0.0)), "oldest 0 ms");
        assert_eq!(oldest_hint(Some(5.0), Some(0.0)), "all in delivery");
        assert_eq!(oldest_hint(Some(5.0), None), "oldest unknown");
        let expected = format!("oldest {}", duration(2.0));
        assert_eq!(oldest_hint(Some(5.0), Some(2.0)), expected);
    }

    #[test]
    fn share_of_a_class_links_to_its_requests() {
        let shown = share("a&b", "4xx", 0.25, false).into_string();
        let expected = "<a href=\"/requests?route=a%26b&amp;status=4xx\">25 %</a>";
        assert_eq!(shown, expected);
        assert_eq!(share("a", "5xx", 0.0, false).into_string(), "0 %");
    }
}
