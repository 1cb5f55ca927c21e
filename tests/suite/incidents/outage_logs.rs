//! Warnings in an outage: at most one in 10 s for a cause and a dependency, in each process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postern_core::clock::{Clock, Timestamp};
use postern_harness::Person;
use postern_harness::public_api::{PASSWORD, message, text};
use postern_harness::wait::{text_with, until};
use serde_json::{Value, json};

use super::fault_proxy::Fault;
use super::services::Services;

/// Two intervals of warnings.
const OUTAGE: Duration = Duration::from_secs(20);
/// Time between requests during an outage.
const PACE: Duration = Duration::from_millis(100);
/// Minimum time between two warnings of one dependency. Less than 10 s, because a line is dated after
/// its limit was asked.
const MIN_GAP_MS: i64 = 9_500;

/// A warning or an error of a log.
#[derive(Debug)]
struct Warning {
    at: Timestamp,
    line: String,
}

/// What callers do during an outage.
struct Traffic {
    ada: Person,
    notification: String,
}

impl Traffic {
    async fn start(services: &Services) -> Self {
        let ada = services.split.surface().register().await;
        let recipient = json!({"email": "ada@example.com"});
        let notification = services.submit("email", recipient).await;
        Self { ada, notification }
    }

    /// Makes requests that need every dependency, at most as many as the shipped limits allow.
    async fn run(&self, services: &Services) {
        let (began, mut pace) = (Instant::now(), tokio::time::interval(PACE));
        let mut number = 0;
        while began.elapsed() < OUTAGE {
            pace.tick().await;
            number += 1;
            tokio::join!(
                self.notify(services),
                self.exchange(services),
                self.sign_in(services, number)
            );
        }
    }

    async fn notify(&self, services: &Services) {
        let service = &services.service;
        let mut body = message("email", &json!({"email": "ada@example.com"}));
        body["priority"] = "CRITICAL".into();
        let _ = service.post_json("/notifications", &body).await;
        let path = format!("/notifications/{}", self.notification);
        let _ = service.get(&path).send().await;
    }

    async fn exchange(&self, services: &Services) {
        let surface = services.split.surface();
        let _ = surface.exchange(&"A".repeat(43)).await;
        let refresh = text(&self.ada.tokens, "refreshToken");
        let _ = surface.refresh(refresh).await;
        let _ = self.ada.client.get("/auth/me").send().await;
    }

    /// Signs in and registers once in a second.
    async fn sign_in(&self, services: &Services, number: u32) {
        if number % 10 != 1 {
            return;
        }
        let client = services.split.surface().client();
        let login = json!({"email": self.ada.email, "password": PASSWORD});
        let _ = client.post_json("/auth/login", &login).await;
        let new = json!({"email": format!("outage-{number}@example.com"), "password": PASSWORD});
        let _ = client.post_json("/auth/register", &new).await;
    }
}

/// Returns the warnings and errors since `since`, by the process that logged them, and by the other
/// dependency that they name.
fn warnings(log: &str, since: Timestamp) -> BTreeMap<String, Vec<Warning>> {
    let mut found: BTreeMap<String, Vec<Warning>> = BTreeMap::new();
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if !["WARN", "ERROR"].contains(&text(&event, "level")) {
            continue;
        }
        let at = Timestamp::parse(text(&event, "timestamp")).expect("a timestamp");
        if at >= since {
            let line = line.to_owned();
            // A pool or a provider that does not answer in time is a cause of its own.
            let other = ["dependency", "provider"].map(|name| event[name].as_str());
            let cause = other.into_iter().flatten().next().unwrap_or_default();
            let process = format!("{} {cause}", text(&event, "service"));
            let of_process = found.entry(process.trim_end().to_owned());
            of_process.or_default().push(Warning { at, line });
        }
    }
    found
}

/// Asserts that each process has warned at most once in 10 s and of one cause since `since`, and that `expected` has
/// warned.
fn assert_bounded(log: &str, since: Timestamp, dependency: &str, expected: &[&str]) {
    let found = warnings(log, since);
    for process in expected {
        let warns = found.contains_key(*process);
        assert!(warns, "{dependency}: {process} does not warn: {log}");
    }
    for (process, warnings) in &found {
        for pair in warnings.windows(2) {
            let [before, after] = pair else { continue };
            assert!(
                after.at.0 - before.at.0 >= MIN_GAP_MS,
                "{dependency}: {process} warns twice:\n{}\n{}\nof {warnings:#?}",
                before.line,
                after.line
            );
        }
    }
}

/// Starts the processes, and waits for the checks after their start.
async fn start() -> Services {
    let services = Services::start().await;
    text_with("startup check completed", async || services.split.log()).await;
    services
}

/// Waits until notifications are accepted and `ada` can sign in.
async fn until_healthy(services: &Services, ada: &Person) {
    let body = message("email", &json!({"email": "ada@example.com"}));
    let login = json!({"email": ada.email, "password": PASSWORD});
    let client = services.split.surface().client();
    until("notifications and sign-ins recover", async || {
        let accepted = services.service.post_json("/notifications", &body).await;
        let signed_in = client.post_json("/auth/login", &login).await;
        accepted.status == 201 && signed_in.status == 200
    })
    .await;
    for process in ["postern-auth", "postern-notify"] {
        let _ = services.readiness(process, r#""degraded":[]"#).await;
    }
}

#[tokio::test]
async fn outages_warn_once_in_ten_seconds() {
    let mut services = start().await;
    let ada = services.split.surface().register().await;
    let traffic = Traffic::start(&services).await;
    let since = Clock::system().now();
    services.redis.kill().await;
    traffic.run(&services).await;
    services.redis.restart().await;
    until_healthy(&services, &ada).await;
    let log = services.split.log();
    assert_bounded(&log, since, "Redis", &["postern-auth", "postern-notify"]);

    let traffic = Traffic::start(&services).await;
    let since = Clock::system().now();
    services.database.kill().await;
    traffic.run(&services).await;
    services.database.restart().await;
    until_healthy(&services, &ada).await;
    let log = services.split.log();
    let expected = ["postern-auth", "postern-notify"];
    assert_bounded(&log, since, "PostgreSQL", &expected);
    outage_of_a_service(&mut services, &ada).await;
    services.stop().await;
}

async fn outage_of_a_service(services: &mut Services, ada: &Person) {
    let traffic = Traffic::start(services).await;
    let since = Clock::system().now();
    services.pool.set(Fault::Answer("", 503, json!({})));
    traffic.run(services).await;
    services.pool.set(Fault::None);
    until_healthy(services, ada).await;
    let log = services.split.log();
    assert_bounded(&log, since, "pool", &["postern-auth"]);

    let traffic = Traffic::start(services).await;
    let since = Clock::system().now();
    services.split.auth[0].kill().await;
    traffic.run(services).await;
    let log = services.split.log();
    assert_bounded(&log, since, "upstream", &["postern-proxy"]);
}
