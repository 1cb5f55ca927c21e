//! Alerts that a real Prometheus fires when parts of a running system fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use postern_store::cache::testing::RedisServer;
use postern_store::database::testing::postgres;
use postern_tests::program::Program;
use postern_tests::split::Changes;
use postern_tests::surface::welcome;
use postern_tests::{Split, ports};
use serde_json::{Value, json};

use crate::observability::{folder, program};

/// Timeout of the alerts of one fault: the intervals are seconds.
const ALERT_TIMEOUT: Duration = Duration::from_secs(90);

/// Interval at which the alerts are read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Writes `rules.yml` with durations of seconds instead of minutes and hours, and a configuration that
/// scrapes these processes every second.
fn write_configuration(to: &Path, jobs: &[(&'static str, u16)]) {
    let mut rules = std::fs::read_to_string(folder().join("rules.yml")).expect("rules");
    for (window, scaled) in [
        ("5m", "10s"),
        ("10m", "20s"),
        ("30m", "30s"),
        ("1h", "40s"),
        ("6h", "60s"),
    ] {
        rules = rules.replace(&format!("[{window}]"), &format!("[{scaled}]"));
    }
    let is_hold = |line: &str| line.trim_start().starts_with("for: ");
    let rules: Vec<&str> = rules
        .lines()
        .map(|line| {
            if is_hold(line) {
                "        for: 1s"
            } else {
                line
            }
        })
        .collect();
    std::fs::write(to.join("rules.yml"), rules.join("\n") + "\n").expect("writes");
    let mut text =
        "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n\
                    rule_files: [rules.yml]\nscrape_configs:\n"
            .to_owned();
    for (job, port) in jobs {
        text.push_str(&format!(
            "  - job_name: {job}\n    static_configs:\n      - targets: [\"127.0.0.1:{port}\"]\n"
        ));
    }
    std::fs::write(to.join("prometheus.yml"), text).expect("writes");
}

/// Returns the groups of `rules.yml` that have alerts, with these.
fn alerts_of_groups() -> BTreeMap<String, BTreeSet<String>> {
    let rules = std::fs::read_to_string(folder().join("rules.yml")).expect("rules");
    let (mut groups, mut group) = (BTreeMap::<_, BTreeSet<_>>::new(), "");
    for line in rules.lines() {
        if let Some(name) = line.strip_prefix("  - name: ") {
            group = name;
        } else if let Some(alert) = line.strip_prefix("      - alert: ") {
            let alerts = groups.entry(group.to_owned()).or_default();
            alerts.insert(alert.to_owned());
        }
    }
    groups
}

/// Returns the alerts that fire, as `name/value`, with the value of each of their labels.
async fn firing(prometheus: u16) -> BTreeSet<String> {
    let url = format!("http://127.0.0.1:{prometheus}/api/v1/alerts");
    let Ok(answer) = reqwest::get(url).await else {
        return BTreeSet::new();
    };
    let body: Value = answer.json().await.unwrap_or_default();
    let alerts = body["data"]["alerts"].as_array();
    let firing = alerts.into_iter().flatten();
    let firing = firing.filter(|alert| alert["state"] == "firing");
    firing.flat_map(label_values).collect()
}

fn label_values(alert: &Value) -> Vec<String> {
    let labels = alert["labels"].as_object().expect("labels");
    let name = labels["alertname"].as_str().unwrap_or_default();
    let values = labels.values().filter_map(Value::as_str);
    values.map(|value| format!("{name}/{value}")).collect()
}

/// Repeats an action until these alerts fire, of which none fires before.
async fn until_firing(prometheus: u16, expected: &[&str], mut action: impl AsyncFnMut()) {
    let mut last = firing(prometheus).await;
    let fires_early = |alert: &&&str| last.contains(**alert);
    let early: Vec<_> = expected.iter().filter(fires_early).collect();
    assert!(early.is_empty(), "{early:?} fire before their fault");
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    let waiting = async {
        loop {
            poll.tick().await;
            action().await;
            last = firing(prometheus).await;
            if expected.iter().all(|alert| last.contains(*alert)) {
                return;
            }
        }
    };
    let waited = tokio::time::timeout(ALERT_TIMEOUT, waiting).await;
    assert!(waited.is_ok(), "{expected:?} do not fire: {last:?}");
}

/// Waits until Prometheus has scraped all processes, and no alert fires.
async fn until_scraped(prometheus: u16) {
    let url = format!("http://127.0.0.1:{prometheus}/api/v1/query?query=sum(up)");
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    let scraped = async {
        loop {
            poll.tick().await;
            let Ok(answer) = reqwest::get(&url).await else {
                continue;
            };
            let body: Value = answer.json().await.unwrap_or_default();
            // Before the first scrape of a job, its absence is reported.
            let is_scraped = body["data"]["result"][0]["value"][1] == json!("3");
            if is_scraped && firing(prometheus).await.is_empty() {
                return;
            }
        }
    };
    let waited = tokio::time::timeout(ALERT_TIMEOUT, scraped).await;
    let fired = firing(prometheus).await;
    assert!(
        waited.is_ok(),
        "all is scraped, and nothing has failed: {fired:?}"
    );
}

/// The mail server refuses connections.
const MAIL_SERVER_ALERTS: [&str; 2] = ["PosternProviderFailing/smtp", "PosternProviderDown/smtp"];

/// Redis is killed.
const CACHE_ALERTS: [&str; 2] = [
    "PosternAuthCacheDown/postern-auth",
    "PosternDependencyDown/cache",
];

/// postern-auth is killed, while users sign in.
const PROCESS_ALERTS: [&str; 4] = [
    "PosternProcessDown/postern-auth",
    "PosternUpstreamDown/auth",
    "PosternRouteErrors/login",
    "PosternAvailabilityBurnFast/postern-proxy",
];

#[test]
fn each_group_has_an_alert_that_a_fault_fires() {
    let live = [&MAIL_SERVER_ALERTS[..], &CACHE_ALERTS, &PROCESS_ALERTS].concat();
    let live = live.iter().filter_map(|alert| alert.split('/').next());
    let live: BTreeSet<String> = live.map(str::to_owned).collect();
    let groups = alerts_of_groups();
    assert_eq!(groups.len(), 6, "{:?}", groups.keys());
    for (group, alerts) in groups {
        assert!(!alerts.is_disjoint(&live), "no alert of {group} is shown");
    }
}

#[tokio::test]
async fn failing_parts_fire_their_alerts() {
    let stores = [postgres().await, postgres().await];
    let mut redis = RedisServer::start(&["--save", "", "--appendonly", "no"]).await;
    let changes = Changes {
        mail_port: Some(ports::free(1)),
        stores: Some([stores[0].url.clone(), stores[1].url.clone(), redis.url()]),
        ..Changes::default()
    };
    let mut split = Split::start_with(changes).await;
    let ada = split.surface().register().await;
    let work = tempfile::tempdir().expect("a folder");
    write_configuration(work.path(), &split.admin_ports());
    let port = ports::free(1);
    let prometheus = Program::at(program("prometheus"), work.path())
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=data")
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .start();
    until_scraped(port).await;

    let notify = async || {
        let body = welcome(&ada.id);
        let _accepted = ada.client.post("/notifications").json(&body).send().await;
    };
    until_firing(port, &MAIL_SERVER_ALERTS, notify).await;

    redis.kill().await;
    until_firing(port, &CACHE_ALERTS, async || {}).await;

    split.kill_auth().await;
    let client = split.surface().client();
    let login = async || {
        let body = json!({"email": "nobody@example.com", "password": "wrong password"});
        let _unavailable = client.post("/auth/login").json(&body).send().await;
    };
    until_firing(port, &PROCESS_ALERTS, login).await;
    prometheus.kill().await;
    split.stop().await;
}
