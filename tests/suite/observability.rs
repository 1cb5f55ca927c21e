//! The alert rules, dashboards and runbook of `conf/observability`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use postern_harness::paths::{self, peer, repository};
use postern_harness::systems::succeed;
use serde_json::Value;

use crate::metrics_reference::documented;

const DASHBOARDS: [&str; 4] = ["overview", "gateway", "auth", "notify"];

pub(crate) fn folder() -> PathBuf {
    repository().join("conf/observability")
}

/// Returns a program that `tests/peers/prometheus/install` has unpacked.
pub(crate) fn program(name: &str) -> PathBuf {
    peer("prometheus/usr/bin").join(name)
}

fn read(path: &str) -> String {
    paths::read(&format!("conf/observability/{path}"))
}

fn promtool(arguments: &[&str]) {
    let mut promtool = Command::new(program("promtool"));
    let _output = succeed(promtool.args(arguments).current_dir(folder()));
}

/// Parses a YAML document.
pub(crate) fn yaml(text: &str) -> Value {
    let mut document: serde_yaml::Value = serde_yaml::from_str(text).expect("YAML");
    document.apply_merge().expect("merges are of mappings");
    serde_json::to_value(document).expect("JSON")
}

/// Returns all rules of `rules.yml`.
pub(crate) fn rules() -> Vec<Value> {
    let groups = yaml(&read("rules.yml"))["groups"].clone();
    let groups = groups.as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().cloned());
    rules.flatten().collect()
}

/// Returns the alerts of `rules.yml` by their names.
fn alerts() -> BTreeMap<String, Value> {
    let named = |rule: Value| Some((rule["alert"].as_str()?.to_owned(), rule));
    let alerts: BTreeMap<_, _> = rules().into_iter().filter_map(named).collect();
    assert!(alerts.len() > 30, "all alerts are found");
    alerts
}

/// Returns the words of a text that may be names of metrics.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_' || it == ':'))
}

/// Returns the words of a text that are names of metrics of Postern, without the suffixes of
/// histograms.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_metric = |word: &&str| word.starts_with("postern_") && !word.contains("::");
    let base = |word: &str| {
        let suffixes = ["_bucket", "_count", "_sum"];
        let cut = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix));
        cut.unwrap_or(word).to_owned()
    };
    words(text).filter(is_metric).map(base).collect()
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
    for name in alerts().into_keys() {
        let test = tests.split(&format!("  - name: {name}\n")).nth(1);
        let test = test.unwrap_or_else(|| panic!("no test of {name}"));
        let test = test.split("\n  - name: ").next().unwrap_or_default();
        for part in [&*format!("alertname=\"{name}\""), "value: 1"] {
            assert!(test.contains(part), "{name}: one firing alert: {part}");
        }
        // An absent target needs no second set of series.
        let has_quiet = test.matches("- series:").count() > 1;
        assert!(has_quiet, "{name}: other series must not make it fire");
    }
}

#[test]
fn each_alert_has_labels_annotations_and_a_runbook() {
    let runbook = paths::read("docs/runbook.md");
    let alerts = alerts();
    for (name, alert) in &alerts {
        let value = |place: &str, key: &str| {
            let value = alert[place][key].as_str();
            value.unwrap_or_else(|| panic!("{name} has no {key}"))
        };
        let severity = value("labels", "severity");
        assert!(["page", "ticket"].contains(&severity), "{name}");
        let texts = ["summary", "description"].map(|key| value("annotations", key).len());
        assert!(texts[0] > 10 && texts[1] > 20, "{name}");
        let link = value("annotations", "runbook_url");
        let anchor = format!("docs/runbook.md#{}", name.to_lowercase());
        assert!(link.ends_with(&anchor), "{name}: {link}");
        let section = runbook.split(&format!("### {name}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("the runbook has no heading {name}"));
        let section = section.split("\n### ").next().unwrap_or_default();
        let is_told = |part: &str| section.contains(part);
        let is_complete = is_told("**Diagnosis.**") && is_told("**Remedy.**");
        let is_complete = is_complete || is_told("**As for** [Postern");
        assert!(is_told("**Meaning.**") && is_complete, "{name}: {section}");
    }
    let mut headings = runbook.lines().filter_map(|line| line.strip_prefix("### "));
    let stale = headings.find(|heading| !alerts.contains_key(*heading));
    assert_eq!(stale, None, "no alert has this name");
}

#[test]
fn rules_dashboards_and_runbook_use_documented_metrics() {
    let documented = documented();
    let mut texts = vec![
        ("rules.yml".to_owned(), read("rules.yml")),
        ("runbook.md".to_owned(), paths::read("docs/runbook.md")),
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
            assert!(is_known, "{file}: the reference has no {name}");
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
    let runbook = paths::read("docs/runbook.md");
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
        rules += &format!("      - record: query:{at}\n        expr: {query}\n");
    }
    let made = tempfile::tempdir().expect("a folder");
    let file = made.path().join("queries.yml");
    std::fs::write(&file, rules).expect("writes");
    promtool(&["check", "rules", &file.display().to_string()]);
}
