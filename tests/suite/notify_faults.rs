//! Outages and races while notifications are processed.

use std::time::{Duration, Instant};

use postern_harness::note;
use postern_store::database::Database;
use postern_store::database::testing::{Relay, postgres};
use sqlx::{AssertSqlSafe, Executor};

use crate::notify_cluster::NotifyCluster;

const SETTINGS: &str = "[queue]\nsms_permits = 16";
/// Maximum time of a takeover: 10 s until a lease expires, 2.5 s until that is detected, 1 s until a
/// scan, and a claim.
pub(crate) const MAX_TAKEOVER_TIME: Duration = Duration::from_secs(15);
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn cache_outage_does_not_stop_delivery() {
    let database = postgres().await;
    let settings = format!("service_quota = 5\n{SETTINGS}");
    let mut cluster = NotifyCluster::over(&database.url, &settings).await;
    cluster.cache = "redis://127.0.0.1:1".to_owned();
    let replica = cluster.replica().await;
    for number in 0..10 {
        cluster.deliver(&replica, &format!("k{number}")).await;
    }
    replica.stop().await;
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
        let key = format!("s{number}");
        let answer = cluster.post(&replica, &key, "NORMAL").await;
        assert_eq!(answer.expect("it answers").status, 503);
        let took = asked.elapsed();
        note(&format!("silent database: 503 after {took:.1?}"));
        assert!(took < MAX_RESPONSE_TIME, "{took:?}");
    }
    cluster.wait_until_not_ready(&replica, "database").await;
    relay.recover();
    // The same keys: a notification that was committed although the response was 503 is found, and
    // nothing is sent twice.
    for key in ["s0", "s1", "s2"] {
        cluster.deliver_after_recovery(&replica, key).await;
    }
    assert_eq!(cluster.provider.calls().len(), 4);
    // A stop does not wait for the database.
    relay.stop_forwarding();
    let refused = cluster.post(&replica, "k1", "NORMAL").await;
    assert_eq!(refused.expect("it answers").status, 503);
    let stopped = Instant::now();
    replica.stop().await;
    let took = stopped.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
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
    // Existing sessions keep their settings: the replica's are terminated, as in a failover.
    let set = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    pool.execute(AssertSqlSafe(set)).await.expect("set");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    pool.execute(end).await.expect("the sessions end");
    cluster
        .wait_until_not_ready(&replica, "accepts no writes")
        .await;
    let refused = cluster.post(&replica, "k1", "NORMAL").await;
    assert_eq!(refused.expect("it answers").status, 503);
    // The old server's sessions are not terminated: the replica must detect that they are
    // read-only.
    let set = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    pool.execute(AssertSqlSafe(set)).await.expect("reset");
    cluster.deliver_after_recovery(&replica, "k1").await;
    replica.stop().await;
}

#[tokio::test]
async fn worker_resumed_after_its_lease_changes_nothing() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    let zombie = cluster.replica().await;
    cluster.provider.pause_responses();
    let id = cluster.accept(&zombie, "k", "HIGH").await;
    cluster.wait_for_calls(1, STEP_TIMEOUT).await;
    zombie.running.signal("STOP").await;
    let other = cluster.replica().await;
    cluster.provider.resume_responses();
    let stopped = Instant::now();
    cluster.wait_for_calls(2, STEP_TIMEOUT).await;
    let took = stopped.elapsed();
    assert!(took <= MAX_TAKEOVER_TIME, "{took:?}");
    cluster.settled(&other, &id, "SENT").await;
    zombie.running.signal("CONT").await;
    let lost = "postern_notify_lease_lost_total";
    cluster.wait_for_metric(&zombie, lost, 1).await;
    let view = cluster.status(&other, &id).await;
    let events = view["events"].as_array().expect("events").iter();
    let kinds: Vec<_> = events.filter_map(|event| event["type"].as_str()).collect();
    let expected = "QUEUED ATTEMPTED OUTCOME_UNKNOWN ATTEMPTED SENT";
    assert_eq!(kinds.join(" "), expected, "{view}");
    // The zombie begins nothing more, and continues under a new identity.
    assert_eq!(cluster.provider.calls().len(), 2);
    let again = cluster.accept(&zombie, "k2", "HIGH").await;
    cluster.settled(&zombie, &again, "SENT").await;
    for replica in [zombie, other] {
        replica.stop().await;
    }
}
