//! What is wrong now, the figures of the last hour, and all processes.

use maud::{Markup, html};
use postern_common::clock::Timestamp;
use serde_json::Value;

use super::{Context, heading};
use crate::actions::path_segment;
use crate::config::ProcessKind;
use crate::findings::{Finding, Severity};
use crate::sampling::{Monitor, Point};
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::Traffic;
use crate::widgets::{
    Tone, badge, bytes, chart_minutes, duration, mono, number, percent, sparkline, time,
};

const PRIORITIES: [&str; 4] = ["CRITICAL", "HIGH", "NORMAL", "LOW"];
const CHANNELS: [&str; 3] = ["email", "sms", "push"];
/// Routes in the table.
const MAX_ROUTES: usize = 8;
/// Error ratio that the chart marks.
const ERROR_THRESHOLD: f64 = 0.001;

pub(super) fn render(context: &Context<'_>) -> Markup {
    let now = context.sampler.now();
    context.sampler.read(|monitor| {
        html! {
            (heading("Overview"))
            div data-live="overview" {
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
    let class = match finding.severity {
        Severity::Failing => "alert",
        Severity::Degraded => "alert warn",
    };
    let (title, name) = &finding.title;
    html! {
        div class=(class) {
            strong { (title) " " code { (name) } }
            span { (finding.detail) }
            @if finding.page != "/" { a href=(finding.page) { "Show" } }
            @if let Some(since) = since {
                time datetime=(since) title=(since) { "for " (duration(now.since(since).as_secs_f64())) }
            }
        }
    }
}

fn figures(monitor: &Monitor) -> Markup {
    let (rate, total) = monitor.total();
    let series =
        |value: fn(&Point) -> Option<f64>| monitor.points.iter().map(value).collect::<Vec<_>>();
    let latency = |quantile| total.quantile(quantile).map_or("–".to_owned(), duration);
    let last = monitor.points.back();
    let oldest = last.map_or(0.0, |point| point.oldest_s);
    let errors = total.error_ratio().map_or("–".to_owned(), percent);
    let p99 = series(|point| point.p99_s);
    let period = match chart_minutes(monitor.points.len()) {
        60 => "last hour".to_owned(),
        minutes => format!("last {minutes} minutes"),
    };
    let label = |what: &str| format!("{what}, {period}");
    html! {
        (figure("Requests", &period, &format!("{} /s", number(rate)),
            &sparkline(&label("Requests per second"), &series(|point| Some(point.requests_per_s)), None)))
        (figure("Errors (5xx)", "line at 0.1 %", &errors,
            &sparkline(&label("Error ratio"), &series(|point| point.error_ratio), Some(ERROR_THRESHOLD))))
        (figure("Latency p50 · p99", "chart: p99", &format!("{} · {}", latency(0.5), latency(0.99)),
            &sparkline(&label("Latency p99"), &p99, None)))
        (figure("Waiting", &oldest_hint(last.map_or(0.0, |point| point.waiting), oldest),
            &last.map_or("–".to_owned(), |point| number(point.waiting)),
            &sparkline(&label("Waiting notifications"), &series(|point| Some(point.waiting)), None)))
    }
}

/// Returns the age of the oldest waiting notification. Of those that are counted, all may be in
/// delivery.
fn oldest_hint(waiting: f64, oldest: f64) -> String {
    if waiting > 0.0 && oldest <= 0.0 {
        "all in delivery".to_owned()
    } else {
        format!("oldest {}", duration(oldest))
    }
}

fn figure(label: &str, hint: &str, value: &str, chart: &Markup) -> Markup {
    html! {
        section.panel {
            h2.label { span { (label) } span { (hint) } }
            div.figure { (value) }
            (chart)
        }
    }
}

fn routes(monitor: &Monitor) -> Markup {
    let mut routes: Vec<_> = monitor.routes().into_iter().collect();
    routes.retain(|(_, (rate, _))| *rate > 0.0);
    routes.sort_by(|(_, left), (_, right)| {
        let ratio = |entry: &(f64, Traffic)| entry.1.error_ratio().unwrap_or(0.0);
        ratio(right)
            .total_cmp(&ratio(left))
            .then(right.0.total_cmp(&left.0))
    });
    html! {
        section.panel.wide {
            h2 { "Routes by error ratio, last minute" }
            @if routes.is_empty() { p.muted { "No requests in the last minute." } }
            @else { div.scroll tabindex="0" role="region" aria-label="Routes" { table {
                thead { tr { th scope="col" { "Route" } th.num scope="col" { "req/s" } th.num scope="col" { "4xx" } th.num scope="col" { "5xx" } th.num scope="col" { "p99" } } }
                tbody { @for (route, (rate, traffic)) in routes.iter().take(MAX_ROUTES) {
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
    let notify = monitor
        .processes
        .iter()
        .find(|process| process.kind == ProcessKind::Notify && process.error.is_none());
    html! {
        section.panel.wide {
            h2 { "Waiting by channel and priority" }
            @if let Some(process) = notify {
                div.scroll tabindex="0" role="region" aria-label="Lanes" { table {
                    thead { tr { th scope="col" { "Channel" } @for priority in PRIORITIES { th.num scope="col" { (priority) } } th scope="col" { "Providers" } } }
                    tbody { @for channel in CHANNELS { tr {
                        th scope="row" { (channel) }
                        @for priority in PRIORITIES { td.num { (lane(process, channel, priority)) } }
                        td { (providers(process, channel)) }
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
    let oldest = values("postern_notify_oldest_waiting_seconds")
        .into_iter()
        .fold(0.0, f64::max);
    let mut throttles = process.scrape.of("postern_notify_low_throttle");
    let is_paused = priority == "LOW"
        && throttles.any(|series| series.label("channel") == channel && series.value == 2.0);
    html! {
        (number(rows))
        @if oldest >= 1.0 { br; small.muted { (duration(oldest)) } }
        @if is_paused { " " (badge(Tone::Warn, "paused")) }
    }
}

fn providers(process: &ProcessStatus, channel: &str) -> Markup {
    let of_channel = process.scrape.of("postern_notify_provider_up");
    let of_channel = of_channel.filter(|series| series.label("channel") == channel);
    html! {
        @for series in of_channel {
            @let name = series.label("provider");
            @if series.value == 1.0 { (badge(Tone::Ok, &format!("{name} up"))) } @else { (badge(Tone::Bad, &format!("{name} fails"))) }
            " "
        }
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
        tr {
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
        return badge(Tone::Bad, "unreachable");
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
        assert_eq!(oldest_hint(0.0, 0.0), "oldest 0 ms");
        assert_eq!(oldest_hint(5.0, 0.0), "all in delivery");
        assert_eq!(oldest_hint(5.0, 2.0), format!("oldest {}", duration(2.0)));
    }

    #[test]
    fn share_of_a_class_links_to_its_requests() {
        let shown = share("a&b", "4xx", 0.25, false).into_string();
        let expected = "<a href=\"/requests?route=a%26b&amp;status=4xx\">25 %</a>";
        assert_eq!(shown, expected);
        assert_eq!(share("a", "5xx", 0.0, false).into_string(), "0 %");
    }
}
