//! The health of each part.

use postern_core::clock::Timestamp;
use serde_json::json;

use super::*;
use crate::testing::process;

const GATEWAY: &str = "postern_connections 3\npostern_endpoints{upstream=\"actor\",state=\"healthy\"} 1\n\
    postern_endpoints{upstream=\"auth\",state=\"healthy\"} 1\n";
const AUTH: &str = "postern_dependency_up{dependency=\"identity_pool\"} 1\npostern_dependency_up{dependency=\"database\"} 1\n\
    postern_dependency_up{dependency=\"cache\"} 1\n";
const NOTIFY: &str = "postern_dependency_up{dependency=\"database\"} 1\npostern_dependency_up{dependency=\"cache\"} 1\n\
    postern_notify_provider_up{channel=\"email\",provider=\"smtp\"} 1\n";

/// Returns processes of which each is ready, after this number of answered requests to the actor service.
fn sample(requests: u32) -> Vec<ProcessStatus> {
    let counted = format!(
        "postern_requests_total{{route=\"r\",class=\"2xx\"}} {requests}\n\
         postern_proxy_upstream_attempts_total{{upstream=\"actor\"}} {requests}\n\
         postern_upstream_seconds_bucket{{upstream=\"actor\",le=\"0.1\"}} {requests}\n\
         postern_upstream_seconds_bucket{{upstream=\"actor\",le=\"+Inf\"}} {requests}\n"
    );
    let gateway = format!("{GATEWAY}{counted}");
    let all = [(Gateway, gateway.as_str()), (Auth, AUTH), (Notify, NOTIFY)];
    let ready = |(kind, metrics)| ProcessStatus {
        readiness: json!({ "ready": true, "parts": {} }),
        ..process(kind, metrics)
    };
    all.map(ready).into()
}

/// Returns name, health and reason of each part after samples 5 s apart.
fn parts(samples: &[Vec<ProcessStatus>]) -> Vec<(String, Health, String)> {
    let mut monitor = Monitor::default();
    for (sample, tick) in samples.iter().zip(0..) {
        monitor.record(Timestamp(5000 * tick), sample.clone());
    }
    let source = Source::of(&monitor);
    let [services, needs] = [source.services(), source.needs()];
    let first = [source.clients(), source.gateway()].into_iter();
    let all = first.chain(services).chain(needs);
    all.map(|part| (part.name, part.health, part.reason))
        .collect()
}

fn health(samples: &[Vec<ProcessStatus>], name: &str) -> (Health, String) {
    let mut all = parts(samples).into_iter();
    let found = all.find(|(known, ..)| known == name);
    let (_, health, reason) = found.expect("a part");
    (health, reason)
}

#[test]
fn every_part_is_ok_after_answered_requests() {
    let all = parts(&[sample(0), sample(10)]);
    let names: Vec<&str> = all.iter().map(|(name, ..)| name.as_str()).collect();
    let expected = [
        "Clients",
        "Gateway",
        "actor",
        "auth",
        "notify",
        "Identity pool",
        "Database",
        "Cache",
        "smtp",
    ];
    assert_eq!(names, expected);
    assert!(
        all.iter().all(|(_, health, _)| *health == Health::Ok),
        "{all:?}"
    );
}

#[test]
fn part_of_which_nothing_is_known_is_not_ok() {
    let all = parts(&[]);
    assert!(
        all.iter().all(|(_, health, _)| *health == Health::Unknown),
        "{all:?}"
    );
    // Without requests, nothing tells that another service works.
    let idle = [sample(0), sample(0)];
    assert_eq!(health(&idle, "actor").0, Health::Unknown);
    assert_eq!(health(&idle, "Clients").0, Health::Unknown);
    assert_eq!(
        health(&idle, "auth").0,
        Health::Ok,
        "it says that it is ready"
    );
    let mut untold = sample(10);
    untold[1].readiness = json!(null);
    untold[2].scrape.0.clear();
    let samples = [sample(0), untold];
    for name in ["auth", "Database", "Cache"] {
        assert_eq!(
            health(&samples, name),
            (Health::Unknown, NOBODY.to_owned()),
            "{name}"
        );
    }
    assert_eq!(health(&samples, "Identity pool").0, Health::Ok);
}

#[test]
fn three_processes_that_are_away_are_failing_and_their_needs_unknown() {
    let mut away = sample(0);
    for process in &mut away {
        process.error = Some("refused".to_owned());
    }
    let samples = [sample(0), sample(10), away];
    for name in ["Gateway", "auth", "notify"] {
        let expected = (Health::Failing, "A process does not answer".to_owned());
        assert_eq!(health(&samples, name), expected, "{name}");
    }
    for name in [
        "Clients",
        "actor",
        "Identity pool",
        "Database",
        "Cache",
        "smtp",
    ] {
        assert_eq!(health(&samples, name).0, Health::Unknown, "{name}");
    }
    let mut monitor = Monitor::default();
    monitor.record(Timestamp(0), samples[2].clone());
    let shown = picture(&monitor).into_string();
    assert!(!shown.contains("part ok"), "{shown}");
}

#[test]
fn part_is_as_bad_as_the_findings_that_concern_it() {
    let mut ill = sample(10);
    ill[2].scrape = process(
        Notify,
        "postern_dependency_up{dependency=\"database\"} 0\npostern_dependency_up{dependency=\"cache\"} 1\n\
         postern_notify_provider_up{channel=\"email\",provider=\"smtp\"} 1\n\
         postern_notify_circuit_breaker_state{channel=\"email\",provider=\"smtp\"} 2\n",
    )
    .scrape;
    let samples = [sample(0), ill];
    let failing = (Health::Failing, "A dependency fails".to_owned());
    assert_eq!(health(&samples, "Database"), failing);
    assert_eq!(health(&samples, "notify"), failing);
    assert_eq!(health(&samples, "auth").0, Health::Ok);
    let open = (Health::Degraded, "A circuit breaker is open".to_owned());
    assert_eq!(health(&samples, "smtp"), open);
    // One of two replicas is away.
    let mut two = sample(10);
    two.push(ProcessStatus {
        name: "auth-1".to_owned(),
        error: Some("refused".to_owned()),
        ..two[1].clone()
    });
    let samples = [sample(0), two];
    assert_eq!(health(&samples, "auth").0, Health::Degraded);
    assert_eq!(health(&samples, "Identity pool").0, Health::Unknown);
}

#[test]
fn many_upstreams_are_folded_the_worst_and_busiest_first() {
    let lines = (0..20).map(|it| {
        format!(
            "postern_endpoints{{upstream=\"u{it}\",state=\"healthy\"}} {}\n",
            u8::from(it != 13)
        )
    });
    let mut many = sample(10);
    let scrape = process(Gateway, &lines.collect::<String>()).scrape;
    many[0].scrape.0.extend(scrape.0);
    let all = parts(&[sample(0), many]);
    let services = &all[2..2 + MAX_PARTS];
    assert_eq!(services[0].0, "u13");
    assert_eq!(services[0].1, Health::Failing);
    assert_eq!(services[MAX_PARTS - 1].0, "16 more");
}
