//! What the state of the replicas says.

use std::fmt::{Debug, Display};
use std::time::Duration;

use super::*;
use crate::sampling::Monitor;
use crate::testing::{gateway, process};

/// Returns name, subject and detail of what is wrong after these samples, a minute apart.
fn findings_of(samples: &[Vec<ProcessStatus>]) -> Vec<(String, Finding)> {
    let mut monitor = Monitor::default();
    for (sample, minute) in samples.iter().zip(0..) {
        monitor.record(Timestamp(59_000 * minute), sample.clone());
    }
    let found = monitor.findings.into_iter();
    let text = |it: &Finding| format!("{} {}: {}", it.condition.name, it.subject, it.detail);
    found.map(|it| (text(&it), it)).collect()
}

/// Asserts what is wrong and its page after a gateway has counted these in a minute.
fn assert_counted<S: Display + Debug>(counters: &[(S, u32)], expected: &[&str]) {
    let samples = [0, 1].map(|factor| {
        let lines = counters
            .iter()
            .map(|(series, count)| format!("{series}\"}} {}\n", count * factor));
        gateway(&lines.collect::<String>())
    });
    let found = findings_of(&samples).into_iter();
    let found: Vec<String> = found
        .map(|(text, it)| format!("{text} -> {}", it.page))
        .collect();
    assert_eq!(found, expected, "{counters:?}");
}

#[test]
fn route_that_fails_or_rejects_most_is_a_finding() {
    let [ok, fails, rejects, scans] = [
        "a&b\",class=\"2xx",
        "a&b\",class=\"5xx",
        "a&b\",class=\"4xx",
        "none\",class=\"4xx",
    ]
    .map(|rest| format!("postern_requests_total{{route=\"{rest}"));
    let failing = "RouteErrors a&b: 10 % of the requests of route a&b are answered with 5xx -> /requests?route=a%26b&status=5xx";
    assert_counted(&[(&ok, 90), (&fails, 10)], &[failing]);
    let rejecting = "RouteRejections a&b: 75 % of the requests of route a&b are answered with 4xx -> /requests?route=a%26b&status=4xx";
    assert_counted(&[(&ok, 10), (&rejects, 30)], &[rejecting]);
    assert_counted(&[(&ok, 95), (&fails, 5)], &[]);
    assert_counted(&[(&ok, 1), (&fails, 2)], &[]);
    assert_counted(&[(&ok, 10), (&rejects, 10)], &[]);
    assert_counted(&[(&rejects, 5)], &[]);
    assert_counted(&[(&scans, 500)], &[]);
}

#[test]
fn counted_fault_names_its_labels_and_its_rows() {
    let dead = "postern_notify_attempts_total{channel=\"email\",provider=\"none\",outcome=\"failed\",code=\"unverified_address_quota";
    let expected = "DeadLetters email unverified_address_quota: Notifications of email ended undelivered (unverified_address_quota); failed none \
                    -> /dead-letters?channel=email&code=unverified_address_quota";
    assert_counted(&[(dead, 1)], &[expected]);
    let token = "postern_requests_total{route=\"r\",class=\"4xx\",code=\"token_signature_invalid";
    let expected = "TokensRejected token_signature_invalid: Requests are answered with token_signature_invalid: the fault of an issuer, of its keys, \
                    or of a removed API key; 4xx r -> /requests?code=token_signature_invalid";
    assert_counted(&[(token, 3)], &[expected]);
    assert_counted(&[(token, 2)], &[]);
    let sign_in = "postern_auth_operations_total{operation=\"sign_in\",outcome=\"";
    assert_counted(
        &[
            (&format!("{sign_in}invalid_credentials"), 30),
            (&format!("{sign_in}ok"), 900),
        ],
        &[],
    );
}

#[test]
fn route_is_compared_with_the_hour_before() {
    let sample = |fast: u32, slow: u32| {
        let bucket = |le, count| {
            format!("postern_request_seconds_bucket{{route=\"r\",le=\"{le}\"}} {count}\n")
        };
        let all = fast + slow;
        let total = format!("postern_requests_total{{route=\"r\",class=\"2xx\"}} {all}\n");
        gateway(
            &[
                total,
                bucket("0.1", fast),
                bucket("5", all),
                bucket("+Inf", all),
            ]
            .concat(),
        )
    };
    let mut monitor = Monitor::default();
    let mut at = Timestamp(0);
    let mut record = |fast, slow| {
        monitor.record(at, sample(fast, slow));
        at = at.plus(Duration::from_secs(5));
        let found = monitor.findings.iter();
        found.map(|it| it.key.clone()).collect::<Vec<_>>()
    };
    for tick in 0..30 {
        assert!(record(10 * tick, 0).is_empty());
    }
    // The third sample is 15 s after the first slow request.
    let found = [10, 20, 30].map(|slow| record(290, slow));
    assert_eq!(found[2], ["RouteSlow r"]);
    let mut after = Vec::new();
    for more in 1..=12 {
        after = record(290 + 20 * more, 30);
    }
    assert!(after.is_empty(), "over: {after:?}");
}

#[test]
fn rejections_after_many_good_requests_are_found_in_ten_seconds() {
    let sample = |ok: u32, rejected: u32| {
        let counter = |class, count| {
            format!("postern_requests_total{{route=\"r\",class=\"{class}\"}} {count}\n")
        };
        gateway(&[counter("2xx", ok), counter("4xx", rejected)].concat())
    };
    let mut monitor = Monitor::default();
    for tick in 0..20 {
        monitor.record(Timestamp(5000 * i64::from(tick)), sample(10 * tick, 0));
    }
    monitor.record(Timestamp(100_000), sample(192, 3));
    monitor.record(Timestamp(105_000), sample(192, 8));
    let finding = monitor.findings.pop().expect("a finding");
    assert_eq!(finding.key, "RouteRejections r");
}

#[test]
fn upstream_that_stops_answering_is_found_in_ten_seconds() {
    let sample = |attempts: u32, answers: u32, failures: u32| {
        gateway(&format!(
            "postern_proxy_upstream_attempts_total{{upstream=\"u\"}} {attempts}\n\
             postern_upstream_seconds_bucket{{upstream=\"u\",le=\"+Inf\"}} {answers}\n\
             postern_proxy_upstream_failures_total{{upstream=\"u\",cause=\"reset\"}} {failures}\n"
        ))
    };
    let mut monitor = Monitor::default();
    let mut at = Timestamp(0);
    let mut record = |attempts, answers, failures| {
        monitor.record(at, sample(attempts, answers, failures));
        at = at.plus(Duration::from_secs(5));
        let found = monitor.findings.iter();
        found.map(|it| it.key.clone()).collect::<Vec<_>>()
    };
    for tick in 0..6 {
        assert!(record(5 * tick, 5 * tick, 0).is_empty());
    }
    assert!(record(30, 27, 0).is_empty(), "it answers some");
    let silent = ["UpstreamSilent u"];
    assert_eq!(record(35, 27, 0), silent);
    for more in 1..20 {
        assert_eq!(record(35 + 5 * more, 27, 0), silent, "{more}");
    }
    assert!(record(135, 27, 2).is_empty(), "it fails");
    // Streams that nothing ends, of an upstream that has only these.
    for more in 0..30 {
        assert!(record(140 + 5 * more, 27, 2).is_empty(), "{more}");
    }
}

#[test]
fn what_a_process_says_of_itself_is_a_finding() {
    let names = |samples: &[Vec<ProcessStatus>]| {
        let found = findings_of(samples).into_iter();
        let name = |(_, it): (String, Finding)| (it.condition.name, it.detail);
        found.map(name).collect::<Vec<_>>()
    };
    let found = names(&[gateway("process_open_fds 950\nprocess_max_fds 1000\n")]);
    assert_eq!(found[0].0, "DescriptorsLow");
    assert!(found[0].1.contains("95 %"), "{found:?}");
    let mut sample = gateway("");
    sample[0].info = serde_json::json!({ "now": "1970-01-01T01:00:00Z" });
    let found = names(&[sample]);
    assert_eq!(found[0].0, "ClocksDiffer", "{found:?}");
    let mut sample = gateway("process_open_fds 800\nprocess_max_fds 1000\n");
    sample[0].info = serde_json::json!({ "now": "1970-01-01T00:00:59Z" });
    assert!(names(&[sample.clone()]).is_empty());
    sample[0].info = serde_json::json!({ "problem": "401 authentication_required" });
    let found = names(&[sample]);
    assert!(found[0].1.contains("token: 401"), "{found:?}");
    let started = |at: u32| gateway(&format!("process_start_time_seconds {at}\n"));
    assert!(names(&[started(1), started(2)]).is_empty(), "a deployment");
    let found = names(&[1, 2, 3].map(started));
    assert_eq!(found[0].0, "ProcessRestarts", "{found:?}");
    let mut notify = process(
        ProcessKind::Notify,
        "postern_notify_template_reload_successful 0\n",
    );
    notify.readiness = serde_json::json!({ "parts": { "templates": "degraded: a.txt:3" } });
    let found = names(&[vec![notify]]);
    assert!(found[0].1.ends_with("; a.txt:3"), "{found:?}");
}

#[test]
fn consequences_are_below_their_cause() {
    let mut notify = process(
        ProcessKind::Notify,
        "postern_dependency_up{dependency=\"database\"} 0\n",
    );
    notify.readiness = serde_json::json!({ "parts": { "database": "degraded: refused" } });
    let mut auth = process(
        ProcessKind::Auth,
        "postern_dependency_up{dependency=\"database\"} 0\n",
    );
    auth.readiness = serde_json::json!({ "parts": { "database": "not writable" } });
    let mut sample = gateway(
        "postern_proxy_upstream_panic_mode{upstream=\"notify\"} 1\npostern_proxy_upstream_panic_mode{upstream=\"b\"} 1\n",
    );
    sample.extend([auth, notify]);
    let found = findings_of(&[sample.clone()]);
    let [(text, cause), (other, _)] = &found[..] else {
        panic!("{found:?}");
    };
    for part in [
        "DependencyDown database: ",
        "not writable",
        "refused",
        "auth-0",
        "notify-0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(cause.consequences.len(), 1, "{cause:?}");
    assert_eq!(cause.consequences[0].key, "UpstreamPanicMode notify");
    assert!(other.starts_with("UpstreamPanicMode b: "), "{other}");
    // A process that does not answer says nothing else.
    sample[2].error = Some("refused".to_owned());
    let found = findings_of(&[sample]);
    assert!(
        found[0]
            .0
            .starts_with("ProcessDown postern-notify notify-0: "),
        "{}",
        found[0].0
    );
    assert!(!found[1].0.contains("notify-0"), "{}", found[1].0);
}
