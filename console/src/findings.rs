//! What is wrong now, derived from the state of the replicas.
//!
//! Input: [`ProcessStatus`]es and [`Faults`]. Output: [`Finding`]s, the worst first. Depends on
//! `config`, `faults`, `prometheus_text` and `status`.

use postern_common::clock::Timestamp;

use crate::config::ProcessKind;
use crate::faults::{Fault, Faults};
use crate::prometheus_text::Series;
use crate::status::{ProcessStatus, config_hash, version};

/// Age of the oldest waiting notification from which delivery does not keep up.
const MAX_WAITING_SECONDS: f64 = 60.0;

/// Time before the end of a certificate from which it is a finding: that of the alert
/// `PosternCertificateExpiresSoon`.
const CERTIFICATE_SECONDS: f64 = 14.0 * 86_400.0;

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
    pub(crate) page: &'static str,
}

/// Returns what is wrong, the worst first.
pub(crate) fn of(processes: &[ProcessStatus], faults: &Faults, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    for process in processes {
        of_process(process, now, &mut found);
    }
    for fault in faults.iter() {
        of_fault(fault, &mut found);
    }
    compare_replicas(processes, &mut found);
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
            page: "/",
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
                page: "/",
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
        page,
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
            let detail = format!("{value} addresses {}", series.label("state"));
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
        page,
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
                    page: "/",
                });
            }
        }
    }
}
