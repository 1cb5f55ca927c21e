//! Replicas with a wrong clock: nothing is lost, sent twice or deleted.

use std::time::Duration;

use http::StatusCode;
use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::database::testing::postgres;
use postern_tests::{FakeClock, Pools, skipped};
use serde_json::Value;

use crate::notify_cluster::NotifyCluster;

const DAY_S: i64 = 86_400;

/// Seconds by which the clock of a replica is ahead, and whether it steps while the process is suspended.
const CLOCKS: [(&str, i64, bool); 6] = [
    ("400 days behind", -400 * DAY_S, false),
    ("5 minutes behind", -300, false),
    ("25 hours ahead", 25 * 3600, false),
    ("21 days ahead", 21 * DAY_S, false),
    ("100 days ahead", 100 * DAY_S, false),
    ("suspended for 15 days", 15 * DAY_S, true),
];
/// Mails are accepted and not sent.
const SETTINGS: &str = "[[provider]]\nname = 'mail'\nchannel = 'email'\nkind = 'null'";
const SKEW: &str = "postern_notify_clock_skew_seconds";
const DELETES_NOTHING: &str =
    "clocks of this machine and of the database differ, nothing is deleted";
/// Time in which libfaketime reads a new time.
const CLOCK_DELAY: Duration = Duration::from_millis(1_500);

/// Returns a cluster, whose token is valid now, and a token that is valid by a clock that is this far ahead.
async fn cluster_with_token(database: &str, ahead_s: i64) -> (NotifyCluster, String) {
    let now = Clock::system().now();
    let clock = Clock::manual(Timestamp(now.0 + ahead_s.min(0) * 1000));
    let pools = Pools::at(clock.clone()).await;
    let mut cluster = NotifyCluster::with_pools(database, SETTINGS, pools).await;
    clock.advance(Duration::from_secs(ahead_s.unsigned_abs()));
    let mut later = cluster.new_token().await;
    if ahead_s < 0 {
        std::mem::swap(&mut cluster.token, &mut later);
    }
    (cluster, later)
}

async fn accept(cluster: &NotifyCluster, url: &str, key: &str) -> String {
    let answer = cluster.post(url, key, "Ada", "NORMAL").await;
    let answer = answer.expect("a response");
    let (status, body) = (answer.status(), answer.text().await.expect("a body"));
    assert_eq!(status, StatusCode::CREATED, "{key}: {body}");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    body["notificationId"].as_str().expect("an id").to_owned()
}

#[expect(
    clippy::too_many_lines,
    reason = "one scenario in the order of its events"
)]
async fn check(name: &str, ahead_s: i64, is_suspended: bool) {
    let database = postgres().await;
    let (mut cluster, mut token) = cluster_with_token(&database.url, ahead_s).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(clock) = FakeClock::new(folder.path().join("clock")) else {
        skipped(name, "libfaketime is not installed");
        return;
    };
    let sound = cluster.replica().await;
    let done = accept(&cluster, &sound.url, "done").await;
    cluster.settled(&sound, &done, "SENT").await;
    let scheduled = cluster.post_scheduled(&sound).await;

    clock.set(if is_suspended { 0 } else { ahead_s });
    cluster.clock = Some(clock.clone());
    let wrong = cluster.replica().await;
    if is_suspended {
        wrong.running.signal("STOP").await;
        clock.set(ahead_s);
        tokio::time::sleep(CLOCK_DELAY).await;
        wrong.running.signal("CONT").await;
    } else {
        let skew = ahead_s.unsigned_abs() - 5;
        cluster.wait_for_metric(&wrong, SKEW, skew).await;
    }
    std::mem::swap(&mut cluster.token, &mut token);
    let late = accept(&cluster, &wrong.url, "late").await;
    cluster.settled(&wrong, &late, "SENT").await;
    assert_eq!(
        accept(&cluster, &wrong.url, "done").await,
        done,
        "{name}: the key is known"
    );
    // A person who unsubscribes at one replica gets no mail from another.
    let mail = cluster.post_mail(&wrong, "ada@example.com").await;
    cluster.unsubscribe(&wrong, &mail, "ada@example.com").await;
    std::mem::swap(&mut cluster.token, &mut token);
    let unsubscribed = Some("RECIPIENT_UNSUBSCRIBED");
    cluster
        .wait_for_mail_outcome(&sound, "ada@example.com", unsubscribed)
        .await;
    let ended = wrong.running.stop("TERM").await;
    assert_eq!(ended.status, Some(0), "{name}: {}", ended.stderr);
    assert!(
        is_suspended || ended.stderr.contains(DELETES_NOTHING),
        "{name}: {}",
        ended.stderr
    );
    assert_eq!(sound.running.stop("TERM").await.status, Some(0), "{name}");

    // A start under the wrong clock, and one under the right one.
    let wrong = cluster.replica().await;
    cluster.clock = None;
    let sound = cluster.replica().await;
    for key in ["done", "late"] {
        let id = accept(&cluster, &sound.url, key).await;
        assert_eq!(
            id,
            if key == "done" { done.as_str() } else { &late },
            "{name}: {key}"
        );
        cluster.settled(&sound, &id, "SENT").await;
    }
    let created_at = cluster.status(&sound.url, &late).await["createdAt"].clone();
    let created_at = Timestamp::parse(created_at.as_str().expect("a time")).expect("a time");
    let age = Clock::system().now().since(created_at);
    assert!(
        age < Duration::from_secs(120),
        "{name}: by the clock of the database: {age:?}"
    );
    cluster.settled(&sound, &scheduled, "SCHEDULED").await;
    let mut called: Vec<_> = cluster
        .provider
        .calls()
        .into_iter()
        .map(|call| call.id)
        .collect();
    called.sort_unstable();
    let mut expected = [done, late];
    expected.sort_unstable();
    assert_eq!(called, expected, "{name}");
    for replica in [wrong, sound] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0), "{name}");
    }
}

#[tokio::test]
async fn wrong_clock_of_a_replica_loses_nothing() {
    let checks = CLOCKS.map(|(name, ahead_s, is_suspended)| check(name, ahead_s, is_suspended));
    futures_util::future::join_all(checks).await;
}
