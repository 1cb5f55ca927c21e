//! The alert rules, dashboards and runbook of `conf/observability`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::metrics_reference::documented;

const DASHBOARDS: [&str; 4] = ["overview", "gateway", "auth", "notify"];

/// An alert of `rules.yml`: its name, and the lines of its rule.
struct Alert {
    name: String,
    lines: Vec<String>,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/observability")
}

/// Returns a program that `tests/peers/prometheus/install` has unpacked.
pub(crate) fn program(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.join(".peers/prometheus/usr/bin").join(name)
}

fn read(path: &str) -> String {
    let path = folder().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn promtool(arguments: &[&str]) {
    let output = Command::new(program("promtool"))
        .args(arguments)
        .current_dir(folder())
        .output()
        .expect("tests/run installs promtool");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

fn alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut is_alert = false;
    for line in read("rules.yml").lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            is_alert = true;
            alerts.push(Alert {
                name: name.to_owned(),
                lines: Vec::new(),
            });
        } else if line.trim().starts_with("- ") {
            is_alert = false;
        } else if let (Some(alert), true) = (alerts.last_mut(), is_alert) {
            alert.lines.push(line.trim().to_owned());
        }
    }
    assert!(alerts.len() > 30, "all alerts are found");
    alerts
}

/// Returns the words of a text that are names of metrics of Postern, without the suffixes of
/// histograms.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_separator =
        |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':');
    let words = text
        .split(is_separator)
        .filter(|word| word.starts_with("postern_") && !word.contains("::"));
    let base = |word: &str| {
        let suffixes = ["_bucket", "_count", "_sum"];
        let cut = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix));
        cut.unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn promtool_accepts_rules_and_configuration() {
    promtool(&["check", "rules", "rules.yml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
fn each_alert_fires_and_is_silent_in_its_test() {
    promtool(&["test", "rules", "tests.yml"]);
    let tests = read("tests.yml");
    for alert in alerts() {
        let name = format!("  - name: {}\n", alert.name);
        let test = tests
            .split(&name)
            .nth(1)
            .unwrap_or_else(|| panic!("no test of {}", alert.name));
        let test = test.split("\n  - name: ").next().unwrap_or_default();
        let fires =
            test.contains(&format!("alertname=\"{}\"", alert.name)) && test.contains("value: 1");
        assert!(fires, "{}: the test expects one firing alert", alert.name);
        // An absent target needs no second set of series.
        let has_quiet = test.matches("- series:").count() > 1;
        assert!(
            has_quiet,
            "{}: other series must not make it fire",
            alert.name
        );
    }
}

#[test]
fn each_alert_has_labels_annotations_and_a_runbook() {
    let runbook = read("../../docs/runbook.md");
    for Alert { name, lines } in alerts() {
        let value = |key: &str| {
            let line = lines.iter().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("{name} has no {key}"))
                .trim()
                .to_owned()
        };
        assert!(
            ["page", "ticket"].contains(&value("severity:").as_str()),
            "{name}"
        );
        assert!(
            value("summary:").len() > 10 && value("description:").len() > 20,
            "{name}"
        );
        let link = value("runbook_url:");
        let anchor = format!("docs/runbook.md#{}", name.to_lowercase());
        assert!(link.ends_with(&anchor), "{name}: {link}");
        let section = runbook.split(&format!("### {name}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("the runbook has no heading {name}"));
        let section = section.split("\n### ").next().unwrap_or_default();
        let is_told = |part: &str| section.contains(part);
        let is_complete = is_told("**Diagnosis.**") && is_told("**Remedy.**");
        assert!(
            is_told("**Meaning.**") && (is_complete || is_told("**As for** [Postern")),
            "{name}: {section}"
        );
    }
    let names: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
    let headings = runbook.lines().filter_map(|line| line.strip_prefix("### "));
    let stale: Vec<&str> = headings
        .filter(|heading| !names.contains(*heading))
        .collect();
    assert!(stale.is_empty(), "no alert has these names: {stale:?}");
}

#[test]
fn rules_dashboards_and_runbook_use_documented_metrics() {
    let documented = documented();
    let mut texts = vec![
        ("rules.yml".to_owned(), read("rules.yml")),
        ("runbook.md".to_owned(), read("../../docs/runbook.md")),
    ];
    for name in DASHBOARDS {
        let path = format!("dashboards/{name}.json");
        texts.push((path.clone(), read(&path)));
    }
    let groups = [
        "postern_records",
        "postern_slo",
        "postern_gateway",
        "postern_auth",
        "postern_notify",
        "postern_process",
        "postern_dependencies",
    ];
    for (file, text) in texts {
        for name in metric_names(&text) {
            let is_known = documented.contains_key(&name) || groups.contains(&name.as_str());
            assert!(
                is_known,
                "{file}: {name} is not in docs/reference/metrics.md"
            );
        }
    }
}

#[test]
fn queries_of_dashboards_and_runbook_are_valid() {
    const BEGINNINGS: [&str; 6] = [
        "sum",
        "max",
        "topk",
        "histogram_quantile",
        "count",
        "postern_",
    ];
    let runbook = read("../../docs/runbook.md");
    let code = runbook.split('`').skip(1).step_by(2);
    let is_query = |code: &&str| BEGINNINGS.iter().any(|begin| code.starts_with(begin));
    // A log target is none.
    let is_query = |code: &&str| is_query(code) && !code.contains("::");
    let mut queries: Vec<String> = code.filter(is_query).map(str::to_owned).collect();
    for name in DASHBOARDS {
        let text = read(&format!("dashboards/{name}.json"));
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let targets = panels
            .iter()
            .filter_map(|panel| panel["targets"].as_array());
        let queried = targets
            .flatten()
            .filter_map(|target| target["expr"].as_str());
        queries.extend(queried.map(|query| {
            let query = query.replace("$__rate_interval", "5m");
            query.replace("$instance", ".*")
        }));
    }
    assert!(queries.len() > 100, "all are found: {queries:?}");
    let mut rules = "groups:\n  - name: queries\n    rules:\n".to_owned();
    for (at, query) in queries.iter().enumerate() {
        // A JSON string is a YAML string.
        let query = Value::from(query.as_str());
        rules.push_str(&format!(
            "      - record: query:{at}\n        expr: {query}\n"
        ));
    }
    let made = tempfile::tempdir().expect("a folder");
    let file = made.path().join("queries.yml");
    std::fs::write(&file, rules).expect("writes");
    promtool(&["check", "rules", &file.display().to_string()]);
}
