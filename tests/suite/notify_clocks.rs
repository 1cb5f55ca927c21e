//! Replicas with a wrong clock, and a start on a full disk: nothing is lost, sent twice or deleted.

use std::process::Command;
use std::time::Duration;

use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_harness::{FakeClock, Pools, skipped};
use postern_store::database::testing::postgres;

use crate::notify_cluster::{NotifyCluster, Replica};

const DAY_S: i64 = 86_400;

/// Seconds by which the clock of a replica is ahead.
const CLOCKS: [(&str, i64); 5] = [
    ("400 days behind", -400 * DAY_S),
    ("5 minutes behind", -300),
    ("25 hours ahead", 25 * 3600),
    ("21 days ahead", 21 * DAY_S),
    ("100 days ahead", 100 * DAY_S),
];
/// The time for which a process is suspended, in seconds.
const SUSPENDED_S: i64 = 15 * DAY_S;
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

/// A notification has the time of the database.
async fn assert_created(cluster: &NotifyCluster, replica: &Replica, id: &str, ahead_s: i64) {
    let view = cluster.status(replica, id).await;
    let created_at = view["createdAt"].as_str().and_then(Timestamp::parse);
    let now = Timestamp(Clock::system().now().0 + ahead_s * 1000);
    let age = now.since(created_at.expect("a time"));
    assert!(age < Duration::from_secs(120), "{age:?}: {view}");
}

/// The provider was called once for each of these and for no other.
fn assert_called_once<const N: usize>(cluster: &NotifyCluster, mut ids: [String; N]) {
    let calls = cluster.provider.calls().into_iter();
    let mut called: Vec<_> = calls.map(|call| call.id).collect();
    called.sort_unstable();
    ids.sort_unstable();
    assert_eq!(called, ids);
}

async fn check(name: &str, ahead_s: i64) {
    let database = postgres().await;
    let (mut cluster, mut token) = cluster_with_token(&database.url, ahead_s).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(clock) = FakeClock::new(folder.path().join("clock")) else {
        skipped(name, "libfaketime is not installed");
        return;
    };
    let sound = cluster.replica().await;
    let done = cluster.accept(&sound, "done", "NORMAL").await;
    cluster.settled(&sound, &done, "SENT").await;
    let scheduled = cluster.post_scheduled(&sound).await;

    clock.set(ahead_s);
    cluster.clock = Some(clock.clone());
    let wrong = cluster.replica().await;
    let skew = ahead_s.unsigned_abs() - 5;
    cluster.wait_for_metric(&wrong, SKEW, skew).await;
    std::mem::swap(&mut cluster.token, &mut token);
    let late = cluster.accept(&wrong, "late", "NORMAL").await;
    cluster.settled(&wrong, &late, "SENT").await;
    let again = cluster.accept(&wrong, "done", "NORMAL").await;
    assert_eq!(again, done, "{name}: the key is known");
    // A person who unsubscribes at one replica gets no mail from another.
    let mail = cluster.post_mail(&wrong, "ada@example.com").await;
    cluster.unsubscribe(&wrong, &mail, "ada@example.com").await;
    std::mem::swap(&mut cluster.token, &mut token);
    let (ada, unsubscribed) = ("ada@example.com", Some("RECIPIENT_UNSUBSCRIBED"));
    cluster
        .wait_for_mail_outcome(&sound, ada, unsubscribed)
        .await;
    let ended = wrong.running.stop("TERM").await;
    assert_eq!(ended.status, Some(0), "{name}: {}", ended.stderr);
    let stderr = &ended.stderr;
    assert!(stderr.contains(DELETES_NOTHING), "{name}: {stderr}");
    assert_eq!(sound.running.stop("TERM").await.status, Some(0), "{name}");

    // A start under the wrong clock, and one under the right one.
    let wrong = cluster.replica().await;
    cluster.clock = None;
    let sound = cluster.replica().await;
    for (key, known) in [("done", &done), ("late", &late)] {
        let id = cluster.accept(&sound, key, "NORMAL").await;
        assert_eq!(id, *known, "{name}: {key}");
        cluster.settled(&sound, &id, "SENT").await;
    }
    assert_created(&cluster, &sound, &late, 0).await;
    cluster.settled(&sound, &scheduled, "SCHEDULED").await;
    assert_called_once(&cluster, [done, late]);
    for replica in [wrong, sound] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0), "{name}");
    }
}

#[tokio::test]
async fn wrong_clock_of_a_replica_loses_nothing() {
    let checks = CLOCKS.map(|(name, ahead_s)| check(name, ahead_s));
    futures_util::future::join_all(checks).await;
}

/// A suspended machine, while the time went on: its monotonic clock stood still.
#[tokio::test]
async fn process_that_was_suspended_goes_on_at_the_right_time() {
    let database = postgres().await;
    database.set_clock(0).await;
    let (mut cluster, later) = cluster_with_token(&database.url, SUSPENDED_S).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(clock) = FakeClock::new(folder.path().join("clock")) else {
        skipped("suspended process", "libfaketime is not installed");
        return;
    };
    cluster.clock = Some(clock.clone());
    let replica = cluster.replica().await;
    let done = cluster.accept(&replica, "done", "NORMAL").await;
    cluster.settled(&replica, &done, "SENT").await;
    let scheduled = cluster.post_scheduled(&replica).await;
    replica.running.signal("STOP").await;
    clock.set(SUSPENDED_S);
    database.set_clock(SUSPENDED_S).await;
    tokio::time::sleep(CLOCK_DELAY).await;
    replica.running.signal("CONT").await;
    cluster.token = later;
    let late = cluster.accept(&replica, "late", "NORMAL").await;
    assert_created(&cluster, &replica, &late, SUSPENDED_S).await;
    for id in [&late, &scheduled] {
        cluster.settled(&replica, id, "SENT").await;
    }
    let ended = replica.running.stop("TERM").await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let replica = cluster.replica().await;
    cluster.settled(&replica, &done, "SENT").await;
    assert_called_once(&cluster, [done, late, scheduled]);
    replica.stop().await;
}

/// Starts a replica that cannot write, which serves reads and is not ready.
async fn assert_serves_reads(cluster: &NotifyCluster, id: &str) -> Replica {
    let replica = cluster.unready_replica().await;
    cluster
        .wait_until_not_ready(&replica, "accepts no writes")
        .await;
    assert_eq!(cluster.status(&replica, id).await["status"], "SENT");
    let refused = cluster.post(&replica, "during", "NORMAL").await;
    assert_eq!(refused.expect("a response").status, 503);
    replica
}

#[tokio::test]
async fn start_with_a_full_database_serves_reads_and_is_not_ready() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    let replica = cluster.replica().await;
    let id = cluster.accept(&replica, "before", "NORMAL").await;
    cluster.settled(&replica, &id, "SENT").await;
    replica.running.kill().await;
    database.set_full(true).await;
    let replica = assert_serves_reads(&cluster, &id).await;
    database.set_full(false).await;
    cluster.deliver_after_recovery(&replica, "after").await;
}

#[tokio::test]
async fn start_on_a_full_disk_serves_reads_and_is_not_ready() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().display().to_string();
    let mount = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", &*path];
    let mounted = Command::new("mount").args(mount).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skipped("start on a full disk", "only root can mount a small one");
        return;
    }
    let cluster = NotifyCluster::over(&format!("sqlite://{path}/notify.db"), "").await;
    let replica = cluster.replica().await;
    let id = cluster.accept(&replica, "before", "NORMAL").await;
    cluster.settled(&replica, &id, "SENT").await;
    replica.running.kill().await;
    let filler = folder.path().join("filler");
    std::fs::write(&filler, vec![0_u8; 4 << 20]).expect_err("the disk is full");
    let replica = assert_serves_reads(&cluster, &id).await;
    std::fs::remove_file(filler).expect("a file of this test");
    cluster.deliver_after_recovery(&replica, "after").await;
    replica.running.kill().await;
    let _unmounted = Command::new("umount").arg(&path).status();
}
