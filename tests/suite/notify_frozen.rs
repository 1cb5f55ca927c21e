//! A suspended worker (`SIGSTOP`) and a killed one: a third delivers the notifications of both.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postern_store::database::testing::postgres;
use postern_tests::note;

use crate::notify_cluster::{Call, NotifyCluster, Replica};
use crate::notify_kills::MAX_TAKEOVER_TIME;

/// Notifications claimed by each of the two replicas. A sixteenth of the permits is reserved for
/// each of CRITICAL and HIGH.
const ROWS: usize = 120;
const SETTINGS: &str = "[queue]\nsms_permits = 150";
/// Concurrent calls of one provider; other claimed rows wait.
const CALLS_AT_ONCE: usize = 64;
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a replica and submits notifications. Returns when its calls are in progress, with the
/// ids.
async fn start_loaded_replica(cluster: &NotifyCluster, calls: usize) -> (Replica, Vec<String>) {
    let replica = cluster.replica().await;
    let ids = cluster.post_batch(&replica, &vec!["NORMAL"; ROWS]).await;
    cluster
        .provider
        .until(STEP_TIMEOUT, |made| made.len() == calls)
        .await;
    for id in &ids {
        let leased = tokio::time::timeout(STEP_TIMEOUT, async {
            while cluster.status(&replica.url, id).await["attempts"] != 1 {}
        });
        leased.await.expect("the replica claims the notification");
    }
    (replica, ids)
}

/// Returns the time from the fault to the first call of each notification, ascending.
fn takeover_times(ids: &[String], calls: &[Call], fault: Instant) -> Vec<Duration> {
    let mut first: HashMap<&str, Instant> = HashMap::new();
    for call in calls.iter().filter(|call| call.at > fault) {
        first.entry(&call.id).or_insert(call.at);
    }
    let mut takeover_times: Vec<_> = ids
        .iter()
        .map(|id| first[id.as_str()].duration_since(fault))
        .collect();
    takeover_times.sort_unstable();
    takeover_times
}

#[tokio::test]
async fn rows_of_a_frozen_worker_are_delivered_within_15_s() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    cluster.provider.pause_responses();
    let (frozen, mut ids) = start_loaded_replica(&cluster, CALLS_AT_ONCE).await;
    let (killed, of_killed) = start_loaded_replica(&cluster, 2 * CALLS_AT_ONCE).await;
    ids.extend(of_killed);
    let successor = cluster.replica().await;
    let fault = Instant::now();
    frozen.running.signal("STOP").await;
    killed.running.kill().await;
    cluster.provider.resume_responses();
    let are_taken_over = |calls: &[Call]| {
        let after = calls.iter().filter(|call| call.at > fault);
        after
            .map(|call| call.id.as_str())
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            == ids.len()
    };
    let calls = cluster.provider.until(STEP_TIMEOUT, are_taken_over).await;
    let takeover_times = takeover_times(&ids, &calls, fault);
    let p99 = takeover_times[takeover_times.len() * 99 / 100];
    let slowest = takeover_times[takeover_times.len() - 1];
    note(&format!(
        "notify: {} rows of a frozen and of a killed worker: taken over within {} ms at p99, {} ms at most",
        takeover_times.len(),
        p99.as_millis(),
        slowest.as_millis()
    ));
    assert!(
        p99 <= MAX_TAKEOVER_TIME && slowest <= MAX_TAKEOVER_TIME,
        "p99 {p99:?}, slowest {slowest:?}"
    );

    // After it resumes, it starts no row that was taken over, and continues with new ones.
    frozen.running.signal("CONT").await;
    for id in &ids {
        cluster.settled(&successor, id, "SENT").await;
    }
    let late = cluster.post_batch(&frozen, &["NORMAL"]).await;
    cluster.settled(&frozen, &late[0], "SENT").await;
    assert_eq!(
        cluster.provider.calls().len(),
        ids.len() + 2 * CALLS_AT_ONCE + 1,
        "calls in progress are repeated"
    );
    for replica in [frozen, successor] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}
