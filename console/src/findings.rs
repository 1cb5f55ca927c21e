//! What is wrong now, derived from the state of the replicas.
//!
//! Input: [`ProcessStatus`]es, [`Faults`] and [`RouteTraffic`]. Output: [`Finding`]s, the worst first.
//! Depends on `actions`, `config`, `faults`, `prometheus_text`, `status`, `traffic` and `widgets`.

use std::borrow::Cow;

use postern_common::clock::Timestamp;

use crate::actions::path_segment;
use crate::config::ProcessKind;
use crate::faults::{Fault, Faults};
use crate::prometheus_text::Series;
use crate::status::{ProcessStatus, config_hash, version};
use crate::traffic::{RouteTraffic, Traffic};
use crate::widgets::percent;

/// Age of the oldest waiting notification from which delivery does not keep up.
const MAX_WAITING_SECONDS: f64 = 60.0;

/// Time before the end of a certificate from which it is a finding: that of the alert
/// `PosternCertificateExpiresSoon`.
const CERTIFICATE_SECONDS: f64 = 14.0 * 86_400.0;

/// Fraction of 5xx above which a route fails: that of the alert `PosternRouteErrors`.
const MAX_ERROR_RATIO: f64 = 0.05;

/// Responses with 5xx in the last minute below which a route does not fail.
const MIN_ERRORS: f64 = 3.0;

/// Fraction of 4xx above which a route rejects: that of the alert `PosternRouteRejections`.
const MAX_REJECTION_RATIO: f64 = 0.5;

/// Responses with 4xx in the last minute below which a route does not reject.
const MIN_REJECTIONS: f64 = 6.0;

/// The name of the route of requests that match none.
const NO_ROUTE: &str = "none";

/// The urgency of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Part of the work is not done.
    Failing,
    /// The work is done, with less margin.
    Degraded,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Identifies the finding in the next sample.
    pub(crate) key: String,
    /// What is wrong: text, then a name.
    pub(crate) title: (&'static str, String),
    pub(crate) detail: String,
    /// The page with more.
    pub(crate) page: Cow<'static, str>,
}

/// Returns what is wrong, the worst first. Of the same severity, routes are the last: they show the
/// effects of other findings.
pub(crate) fn of(
    processes: &[ProcessStatus],
    faults: &Faults,
    routes: &RouteTraffic,
    now: Timestamp,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for process in processes {
        of_process(process, now, &mut found);
    }
    for fault in faults.iter() {
        of_fault(fault, &mut found);
    }
    compare_replicas(processes, &mut found);
    for (route, (_, traffic)) in routes {
        found.extend(of_route(route, traffic));
    }
    found.sort_by_key(|finding| finding.severity);
    let mut keys = Vec::new();
    found.retain(|finding| {
        let is_new = !keys.contains(&finding.key);
        keys.push(finding.key.clone());
        is_new
    });
    found
}

fn of_process(process: &ProcessStatus, now: Timestamp, found: &mut Vec<Finding>) {
    let name = &process.name;
    if let Some(error) = &process.error {
        found.push(Finding {
            severity: Severity::Failing,
            key: format!("unreachable {name}"),
            title: ("Unreachable process", name.clone()),
            detail: error.clone(),
            page: "/".into(),
        });
        return;
    }
    let parts = process.readiness["parts"].as_object();
    for (part, state) in parts.into_iter().flatten() {
        let state = state.as_str().unwrap_or("ok");
        if state != "ok" && !state.starts_with("degraded: ") {
            found.push(Finding {
                severity: Severity::Failing,
                key: format!("not ready {name} {part}"),
                title: ("Process not ready", name.clone()),
                detail: format!("{part}: {state}"),
                page: "/".into(),
            });
        }
    }
    for series in &process.scrape.0 {
        of_series(process, series, now, found);
    }
}

/// Adds a finding if the value of a series says that something is wrong.
fn of_series(process: &ProcessStatus, series: &Series, now: Timestamp, found: &mut Vec<Finding>) {
    let described = of_service(process, series)
        .or_else(|| of_gateway(&process.name, series))
        .or_else(|| of_certificate(series, now));
    let Some((severity, title, subject, detail, page)) = described else {
        return;
    };
    found.push(Finding {
        severity,
        key: format!("{title} {subject} {}", series.label("priority")),
        title: (title, subject),
        detail,
        page: page.into(),
    });
}

/// Severity, title, subject, detail and page.
type Description = (Severity, &'static str, String, String, &'static str);

fn of_service(process: &ProcessStatus, series: &Series) -> Option<Description> {
    let value = series.value;
    let (title, subject, detail, page) = match series.name.as_str() {
        "postern_notify_provider_up" if value == 0.0 => {
            let detail = reason(process, series.label("provider"));
            ("Provider fails", "provider", detail, "/providers")
        }
        "postern_notify_circuit_breaker_state" if value == 2.0 => {
            let detail = "the circuit breaker is open: no calls until a probe succeeds".to_owned();
            ("Circuit breaker open", "provider", detail, "/providers")
        }
        "postern_notify_provider_paused" if value == 1.0 => {
            let detail = "an operator has paused it".to_owned();
            ("Provider paused", "provider", detail, "/providers")
        }
        "postern_dependency_up" if value == 0.0 => {
            let reason = reason(process, series.label("dependency"));
            let detail = format!("{}: {reason}", process.name);
            ("Dependency fails", "dependency", detail, "/")
        }
        "postern_notify_oldest_waiting_seconds" if value > MAX_WAITING_SECONDS => {
            let priority = series.label("priority");
            let detail = format!("{priority}, the oldest waits for {value:.0} s");
            (
                "Notifications are late",
                "channel",
                detail,
                "/notifications",
            )
        }
        _ => return None,
    };
    let subject = series.label(subject).to_owned();
    Some((Severity::Failing, title, subject, detail, page))
}

/// Returns why the readiness of a process calls a partner degraded.
fn reason(process: &ProcessStatus, partner: &str) -> String {
    let part = process.readiness["parts"][partner].as_str();
    let reason = part.and_then(|part| part.strip_prefix("degraded: "));
    reason.unwrap_or("the last call failed").to_owned()
}

fn of_gateway(process: &str, series: &Series) -> Option<Description> {
    let (value, upstream) = (series.value, series.label("upstream").to_owned());
    Some(match series.name.as_str() {
        "postern_endpoints" if value > 0.0 && series.label("state") != "healthy" => {
            let noun = if value == 1.0 { "address" } else { "addresses" };
            let detail = format!("{value} {noun} {}", series.label("state"));
            let title = "Upstream lacks addresses";
            (Severity::Degraded, title, upstream, detail, "/upstreams")
        }
        "postern_proxy_upstream_panic_mode" if value == 1.0 => {
            let detail = "most addresses are excluded, therefore all are used".to_owned();
            let title = "Upstream in panic mode";
            (Severity::Failing, title, upstream, detail, "/upstreams")
        }
        "postern_upstream_names"
            if value > 0.0 && matches!(series.label("state"), "stale" | "unresolved") =>
        {
            let detail = match series.label("state") {
                "stale" => "a name does not resolve any more: its last addresses are used",
                _ => "a name does not resolve: it has no addresses",
            };
            let title = "Upstream name not resolved";
            let detail = detail.to_owned();
            (Severity::Degraded, title, upstream, detail, "/upstreams")
        }
        "postern_proxy_config_last_reload_successful" if value == 0.0 => {
            let detail = "the file has errors, the previous configuration stays active".to_owned();
            let title = "Configuration rejected";
            (
                Severity::Failing,
                title,
                process.to_owned(),
                detail,
                "/configuration",
            )
        }
        _ => return None,
    })
}

fn of_certificate(series: &Series, now: Timestamp) -> Option<Description> {
    if series.name != "postern_tls_certificate_expiry_timestamp_seconds" {
        return None;
    }
    let left_s = series.value - now.0 as f64 / 1000.0;
    let (severity, title, detail) = match left_s {
        left_s if left_s <= 0.0 => {
            let title = "Certificate has expired";
            (Severity::Failing, title, "clients reject it".to_owned())
        }
        left_s if left_s < CERTIFICATE_SECONDS => {
            let detail = format!("in {:.0} days", left_s / 86_400.0);
            (Severity::Degraded, "Certificate expires", detail)
        }
        _ => return None,
    };
    let certificate = series.label("certificate").to_owned();
    Some((severity, title, certificate, detail, "/"))
}

/// Returns the finding of a route of which too many requests fail or are rejected.
fn of_route(route: &str, traffic: &Traffic) -> Option<Finding> {
    let (failed, rejected) = (traffic.error_ratio()?, traffic.rejection_ratio()?);
    let is_failing = traffic.errors >= MIN_ERRORS && failed > MAX_ERROR_RATIO;
    // Scanners request paths that no route has.
    let is_rejecting =
        traffic.rejections >= MIN_REJECTIONS && rejected > MAX_REJECTION_RATIO && route != NO_ROUTE;
    let (severity, title, ratio, class) = match (is_failing, is_rejecting) {
        (true, _) => (Severity::Failing, "Route fails", failed, "5xx"),
        (false, true) => (
            Severity::Degraded,
            "Route rejects requests",
            rejected,
            "4xx",
        ),
        (false, false) => return None,
    };
    let detail = format!(
        "{class} to {} of its requests in the last minute",
        percent(ratio)
    );
    let page = format!("/requests?route={}&status={class}", path_segment(route));
    Some(Finding {
        severity,
        key: format!("{title} {route}"),
        title: (title, route.to_owned()),
        detail,
        page: page.into(),
    })
}

/// Adds the finding of a counted fault.
fn of_fault(fault: &Fault, found: &mut Vec<Finding>) {
    let label = |name| fault.series.label(name).to_owned();
    let failing = Severity::Failing;
    let degraded = Severity::Degraded;
    let (severity, title, subject, cause, page) = match fault.series.name.as_str() {
        "postern_access_events_dropped_total" => {
            let (title, cause) = ("Access log loses events", "the disk is full, or too slow");
            (failing, title, fault.process.clone(), cause.to_owned(), "/")
        }
        "postern_auth_pool_call_seconds_count" => {
            let (title, cause) = match fault.series.label("outcome") {
                "throttled" => ("Identity pool throttles", "its request quota is exceeded"),
                _ => (
                    "Identity pool denies access",
                    "its permissions or settings are wrong",
                ),
            };
            let cause = cause.to_owned();
            (failing, title, label("operation"), cause, "/sign-ins")
        }
        "postern_auth_attempts_throttled_total" => {
            let cause = "too many wrong attempts".to_owned();
            let kind = label("kind");
            (degraded, "Attempts throttled", kind, cause, "/throttled")
        }
        "postern_notify_webhook_rejections_total" => {
            let (title, cause) = ("Delivery reports rejected", label("reason"));
            (degraded, title, label("provider"), cause, "/providers")
        }
        "postern_auth_operations_total" => {
            let cause = "the provider, or its answers".to_owned();
            let (title, outcome) = ("Social sign-ins fail", label("outcome"));
            (degraded, title, outcome, cause, "/sign-ins")
        }
        _ => {
            let (title, cause) = ("Notification quota exceeded", "requests get 429".to_owned());
            let page = "/requests?code=rate_limited";
            (degraded, title, label("caller"), cause, page)
        }
    };
    let count = fault.count;
    found.push(Finding {
        severity,
        key: format!("{title} {subject} {cause}"),
        title: (title, subject),
        detail: format!("{cause}; {count:.0} times, the last within 10 minutes"),
        page: page.into(),
    });
}

/// Adds differences between replicas of one kind.
fn compare_replicas(processes: &[ProcessStatus], found: &mut Vec<Finding>) {
    type Fact = fn(&ProcessStatus) -> Option<String>;
    let facts: [(&'static str, Fact); 2] = [
        ("Replicas have different configurations", config_hash),
        ("Replicas have different versions", version),
    ];
    for kind in ProcessKind::ALL {
        for (title, fact) in facts {
            let replicas = processes.iter().filter(|process| process.kind == kind);
            let mut values: Vec<String> = replicas.filter_map(fact).collect();
            values.sort_unstable();
            values.dedup();
            if values.len() > 1 {
                found.push(Finding {
                    severity: Severity::Degraded,
                    key: format!("{title} {}", kind.as_str()),
                    title: (title, kind.as_str().to_owned()),
                    detail: values.join(", "),
                    page: "/".into(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Monitor;
    use crate::testing::gateway;

    /// Returns the findings after a minute in which the route answered so, and their pages.
    fn findings_of_route(route: &str, classes: &[(&str, u32)]) -> Vec<(String, String)> {
        let sample = |at: u32| {
            let series = classes.iter().map(|(class, count)| {
                let count = count * at;
                format!("postern_requests_total{{route=\"{route}\",class=\"{class}\"}} {count}\n")
            });
            gateway(&series.collect::<String>())
        };
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), sample(0));
        monitor.record(Timestamp(60_000), sample(1));
        let found = monitor.findings().into_iter();
        let found = found.map(|(finding, _)| {
            let (title, name) = finding.title;
            let text = format!("{title} {name}: {}", finding.detail);
            (text, finding.page.into_owned())
        });
        found.collect()
    }

    #[test]
    fn route_that_fails_or_rejects_most_is_a_finding() {
        let fails = findings_of_route("a&b", &[("2xx", 90), ("5xx", 10)]);
        let expected = "Route fails a&b: 5xx to 10 % of its requests in the last minute";
        let page = "/requests?route=a%26b&status=5xx";
        assert_eq!(fails, [(expected.to_owned(), page.to_owned())]);
        let rejects = findings_of_route("a", &[("2xx", 10), ("4xx", 30)]);
        let expected = "Route rejects requests a: 4xx to 75 % of its requests in the last minute";
        let page = "/requests?route=a&status=4xx";
        assert_eq!(rejects, [(expected.to_owned(), page.to_owned())]);
        for (route, classes) in [
            ("a", [("2xx", 95), ("5xx", 5)]),
            ("a", [("2xx", 1), ("5xx", 2)]),
            ("a", [("2xx", 10), ("4xx", 10)]),
            ("a", [("2xx", 0), ("4xx", 5)]),
            ("none", [("2xx", 0), ("4xx", 500)]),
        ] {
            assert_eq!(
                findings_of_route(route, &classes),
                [],
                "{route} {classes:?}"
            );
        }
    }

    #[test]
    fn failed_social_sign_ins_are_a_finding() {
        let metrics = |count: u32| {
            gateway(&format!(
                "up 1\npostern_auth_operations_total{{operation=\"social_sign_in\",outcome=\"invalid_id_token\"}} {count}\n\
                 postern_auth_operations_total{{operation=\"sign_in\",outcome=\"invalid_credentials\"}} {count}\n"
            ))
        };
        let mut monitor = Monitor::default();
        monitor.record(Timestamp(0), metrics(0));
        monitor.record(Timestamp(5000), metrics(2));
        let titles: Vec<_> = monitor
            .findings()
            .into_iter()
            .map(|(it, _)| it.title)
            .collect();
        let expected = ("Social sign-ins fail", "invalid_id_token".to_owned());
        assert_eq!(titles, [expected]);
    }
}
