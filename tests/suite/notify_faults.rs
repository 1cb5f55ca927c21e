//! Outages and races while notifications are processed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postern_store::database::Database;
use postern_store::database::testing::{Relay, postgres};
use sqlx::{AssertSqlSafe, Executor};

use crate::notify_cluster::NotifyCluster;
use crate::notify_kills::MAX_TAKEOVER_TIME;

const SETTINGS: &str = "[queue]\nsms_permits = 16";
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn cache_outage_does_not_stop_delivery() {
    let database = postgres().await;
    let mut cluster =
        NotifyCluster::over(&database.url, &format!("service_quota = 5\n{SETTINGS}")).await;
    cluster.cache = "redis://127.0.0.1:1".to_owned();
    let replica = cluster.replica().await;
    for number in 0..10 {
        cluster.deliver(&replica, &format!("k{number}")).await;
    }
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

/// Upper bound on a busy machine; without a deadline it would be a quarter of an hour.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(10);

#[tokio::test]
async fn unresponsive_database_is_503_until_it_recovers() {
    let database = postgres().await;
    let (relay, url) = Relay::start(&database.url).await;
    let cluster = NotifyCluster::over(&url, SETTINGS).await;
    let replica = cluster.replica().await;
    cluster.deliver(&replica, "k0").await;
    relay.stop_forwarding();
    for number in 0..3 {
        let asked = Instant::now();
        let answer = cluster
            .post(&replica.url, &format!("s{number}"), "Ada", "NORMAL")
            .await;
        let answer = answer.expect("it answers");
        postern_tests::note(&format!(
            "silent database: 503 after {} ms",
            asked.elapsed().as_millis()
        ));
        assert_eq!(answer.status(), 503);
        assert!(asked.elapsed() < MAX_RESPONSE_TIME, "{:?}", asked.elapsed());
    }
    assert!(
        cluster
            .wait_until_not_ready(&replica)
            .await
            .contains("database")
    );
    relay.recover();
    // The same keys: a notification that was committed although the response was 503 is found, and
    // nothing is sent twice.
    for key in ["s0", "s1", "s2"] {
        cluster.deliver_after_recovery(&replica, key).await;
    }
    assert_eq!(cluster.provider.calls().len(), 4);
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn stop_does_not_wait_for_an_unresponsive_database() {
    let database = postgres().await;
    let (relay, url) = Relay::start(&database.url).await;
    let cluster = NotifyCluster::over(&url, SETTINGS).await;
    let replica = cluster.replica().await;
    cluster.deliver(&replica, "k0").await;
    relay.stop_forwarding();
    assert_eq!(
        cluster
            .post(&replica.url, "k1", "Ada", "NORMAL")
            .await
            .expect("it answers")
            .status(),
        503
    );
    let stopped = Instant::now();
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    assert!(
        stopped.elapsed() < Duration::from_secs(40),
        "{:?}",
        stopped.elapsed()
    );
}

#[tokio::test]
async fn demoted_database_is_503_until_another_is_writable() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    let replica = cluster.replica().await;
    cluster.deliver(&replica, "k0").await;
    let name = database.url.rsplit_once('/').expect("a path").1;
    let Database::Postgres(pool) = &database.database else {
        panic!("PostgreSQL")
    };
    let set = async |value: &str| {
        // Existing sessions keep their settings: the replica's are terminated, as in a failover.
        let set = format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}");
        pool.execute(AssertSqlSafe(set))
            .await
            .expect("the setting is changed");
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        pool.execute(end)
            .await
            .expect("the sessions are terminated");
    };
    set("on").await;
    assert!(
        cluster
            .wait_until_not_ready(&replica)
            .await
            .contains("accepts no writes")
    );
    assert_eq!(
        cluster
            .post(&replica.url, "k1", "Ada", "NORMAL")
            .await
            .expect("it answers")
            .status(),
        503
    );
    // The old server's sessions are not terminated: the replica must detect that they are
    // read-only.
    let set = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    pool.execute(AssertSqlSafe(set)).await.expect("reset");
    let accepted = tokio::time::timeout(STEP_TIMEOUT, async {
        loop {
            if let Some(id) = cluster.try_post(&replica.url, "k1", "Ada", "NORMAL").await {
                return id;
            }
        }
    });
    cluster
        .settled(
            &replica,
            &accepted.await.expect("accepted without a restart"),
            "SENT",
        )
        .await;
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn worker_resumed_after_its_lease_changes_nothing() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    let zombie = cluster.replica().await;
    cluster.provider.pause_responses();
    let id = cluster
        .try_post(&zombie.url, "k", "Ada", "HIGH")
        .await
        .expect("accepted");
    cluster
        .provider
        .until(STEP_TIMEOUT, |calls| calls.len() == 1)
        .await;
    zombie.running.signal("STOP").await;
    let other = cluster.replica().await;
    cluster.provider.resume_responses();
    let stopped = Instant::now();
    cluster
        .provider
        .until(STEP_TIMEOUT, |calls| calls.len() == 2)
        .await;
    assert!(
        stopped.elapsed() <= MAX_TAKEOVER_TIME,
        "{:?}",
        stopped.elapsed()
    );
    cluster.settled(&other, &id, "SENT").await;
    zombie.running.signal("CONT").await;
    cluster
        .wait_for_metric(&zombie, "postern_notify_lease_lost_total", 1)
        .await;
    let view = cluster.status(&other.url, &id).await;
    let kinds: Vec<&str> = view["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "QUEUED",
            "ATTEMPTED",
            "OUTCOME_UNKNOWN",
            "ATTEMPTED",
            "SENT"
        ],
        "{view}"
    );
    assert_eq!(
        cluster.provider.calls().len(),
        2,
        "the zombie begins nothing more"
    );
    // The worker continues under a new identity.
    let again = cluster
        .try_post(&zombie.url, "k2", "Ada", "HIGH")
        .await
        .expect("accepted");
    cluster.settled(&zombie, &again, "SENT").await;
    for replica in [zombie, other] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}

#[tokio::test]
async fn concurrent_requests_with_one_key_are_one_notification() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    let replicas = [cluster.replica().await, cluster.replica().await];
    for round in 0..20 {
        let key = format!("double-{round}");
        let posts = (0..8).map(|n| cluster.try_post(&replicas[n % 2].url, &key, "Ada", "NORMAL"));
        let ids: BTreeSet<_> = join_all(posts)
            .await
            .into_iter()
            .map(|id| id.expect("201"))
            .collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    let calls = cluster
        .provider
        .until(STEP_TIMEOUT, |calls| calls.len() >= 20)
        .await;
    let sent: BTreeSet<_> = calls.iter().map(|call| &call.id).collect();
    assert_eq!((calls.len(), sent.len()), (20, 20));
    for replica in replicas {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}
