//! Planted incidents: faults of real processes and of what they depend on. Each must be found from the log,
//! the metrics, the alerts, the commands and the pages of the console that `incidents/incidents.txt` names.

mod authentication;
mod console_view;
mod delivery;
mod dependencies;
mod evidence;
mod fault_proxy;
mod gateway;
mod gateway_faults;
mod latency;
mod outage_logs;
mod rules;
mod samples;
mod services;
mod tokens;

use postern_harness::paths::read;

use self::evidence::Incident;
use self::rules::Rules;
use crate::metrics_reference::documented;

/// All sections of `incidents/incidents.txt`.
const SECTIONS: [&str; 4] = ["Gateway", "Authentication", "Notification", "Dependencies"];

#[test]
fn incident_rows_name_documented_events_and_metrics() {
    let logging = read("docs/reference/log-events.md");
    let (metrics, rules) = (documented(), Rules::read());
    let incidents = Incident::read(&SECTIONS);
    assert!(incidents.len() >= 20, "{}", incidents.len());
    for incident in incidents {
        let Incident {
            name,
            message,
            metric,
            alert,
            ..
        } = incident;
        assert!(
            logging.contains(&format!("`{message}`")),
            "{name}: {message}"
        );
        let base = metric.name.strip_suffix("_count").unwrap_or(&metric.name);
        assert!(metrics.contains_key(base), "{name}: {base}");
        assert!(rules.has(&alert), "{name}: {alert}");
    }
}
