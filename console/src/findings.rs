//! What is wrong now, derived from the state of the replicas.
//!
//! Input: [`ProcessStatus`]es. Output: [`Finding`]s, the worst first. Depends on `config`,
//! `prometheus_text` and `status`.

use crate::config::ProcessKind;
use crate::prometheus_text::Series;
use crate::status::{ProcessStatus, config_hash, version};

/// Age of the oldest waiting notification from which delivery does not keep up.
const MAX_WAITING_SECONDS: f64 = 60.0;

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
pub(crate) fn of(processes: &[ProcessStatus]) -> Vec<Finding> {
    let mut found = Vec::new();
    for process in processes {
        of_process(process, &mut found);
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

fn of_process(process: &ProcessStatus, found: &mut Vec<Finding>) {
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
        of_series(name, series, found);
    }
}

/// Adds a finding if the value of a series says that something is wrong.
fn of_series(process: &str, series: &Series, found: &mut Vec<Finding>) {
    let described = of_service(process, series).or_else(|| of_gateway(process, series));
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

fn of_service(process: &str, series: &Series) -> Option<Description> {
    let value = series.value;
    let (title, subject, detail, page) = match series.name.as_str() {
        "postern_notify_provider_up" if value == 0.0 => {
            let detail = "the last call failed".to_owned();
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
            let detail = format!("{process}: the last call failed");
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
