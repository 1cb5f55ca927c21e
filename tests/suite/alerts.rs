//! Alerts that a real Prometheus fires when parts of a running system fail.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

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

/// Returns the alerts that fire, as `name/label`, with the value of one label.
async fn firing(prometheus: u16, label: &str) -> BTreeSet<String> {
    let url = format!("http://127.0.0.1:{prometheus}/api/v1/alerts");
    let Ok(answer) = reqwest::get(url).await else {
        return BTreeSet::new();
    };
    let body: Value = answer.json().await.unwrap_or_default();
    let alerts = body["data"]["alerts"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    firing
        .map(|alert| {
            format!(
                "{}/{}",
                text(&alert["labels"]["alertname"]),
                text(&alert["labels"][label])
            )
        })
        .collect()
}

/// Repeats an action until these alerts fire.
async fn until_firing(
    prometheus: u16,
    label: &str,
    expected: &[&str],
    mut action: impl AsyncFnMut(),
) {
    let mut last = BTreeSet::new();
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    let waiting = async {
        loop {
            poll.tick().await;
            action().await;
            last = firing(prometheus, label).await;
            if expected.iter().all(|alert| last.contains(*alert)) {
                return;
            }
        }
    };
    let waited = tokio::time::timeout(ALERT_TIMEOUT, waiting).await;
    assert!(waited.is_ok(), "{expected:?} do not fire: {last:?}");
}

#[tokio::test]
async fn failing_parts_fire_their_alerts() {
    let changes = Changes {
        mail_port: Some(ports::free(1)),
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
    let scraped = async {
        let url = format!("http://127.0.0.1:{port}/api/v1/query?query=sum(up)");
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        loop {
            poll.tick().await;
            let Ok(answer) = reqwest::get(&url).await else {
                continue;
            };
            let body: Value = answer.json().await.unwrap_or_default();
            // Before the first scrape of a job, its absence is reported.
            let is_scraped = body["data"]["result"][0]["value"][1] == json!("3");
            if is_scraped && firing(port, "job").await.is_empty() {
                return;
            }
        }
    };
    let waited = tokio::time::timeout(ALERT_TIMEOUT, scraped).await;
    let fired = firing(port, "job").await;
    assert!(
        waited.is_ok(),
        "all is scraped, and nothing has failed: {fired:?}"
    );

    // The mail server refuses connections.
    let notify = async || {
        let body = welcome(&ada.id);
        let _accepted = ada.client.post("/notifications").json(&body).send().await;
    };
    until_firing(port, "provider", &["PosternProviderFailing/smtp"], notify).await;

    split.kill_auth().await;
    until_firing(
        port,
        "job",
        &["PosternProcessDown/postern-auth"],
        async || {},
    )
    .await;
    let client = split.surface().client();
    let login = async || {
        let body = json!({"email": "nobody@example.com", "password": "wrong password"});
        let _unavailable = client.post("/auth/login").json(&body).send().await;
    };
    until_firing(port, "upstream", &["PosternUpstreamDown/auth"], login).await;
    prometheus.kill().await;
    split.stop().await;
}
