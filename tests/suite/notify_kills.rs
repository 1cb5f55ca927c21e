//! Kills of workers, PostgreSQL, Redis, and the single process over SQLite while notifications are
//! processed. `POSTERN_TEST_KILLS` sets the kills of each per run (default 2); long runs use the
//! same tests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use postern_core::config::Env;
use postern_store::cache::testing::RedisServer;
use postern_store::database::testing::{postgres, sqlite};
use postern_tests::note;

use crate::notify_cluster::{NotifyCluster, Replica};
use crate::notify_load::{Kill, Load, Verdict, verdict};
use crate::notify_postgres::OwnPostgres;

/// Maximum notifications claimed by one process.
const PERMITS: usize = 16;
const SETTINGS: &str = "[queue]\nsms_permits = 16";
/// Every request and every call uses the cache.
const WITH_CACHE: &str = "service_quota = 1000000000\n[queue]\nsms_permits = 16";
/// Maximum time of a takeover: 10 s until a lease expires, 2.5 s until that is detected, 1 s until a
/// scan, and a claim.
pub(crate) const MAX_TAKEOVER_TIME: Duration = Duration::from_secs(15);

fn kills() -> usize {
    Env::of_process()
        .get("POSTERN_TEST_KILLS")
        .and_then(|text| text.parse().ok())
        .unwrap_or(2)
}

#[track_caller]
fn assert_guarantees(verdict: &Verdict, kills: &[Kill], what: &str) {
    let Verdict {
        accepted,
        lost,
        extra,
        unknown,
        slowest_takeover,
    } = verdict;
    let max_extra = kills.len() * PERMITS;
    let outage: Duration = kills
        .iter()
        .map(|kill| kill.recovered_at.duration_since(kill.at))
        .sum();
    note(&format!(
        "notify: {} kills of {what} under load: {accepted} accepted, {} lost, {extra} extra sends (at most {max_extra}), slowest \
         takeover {} ms; PostgreSQL was down for {} ms in total, which is not counted",
        kills.len(),
        lost.len(),
        slowest_takeover.as_millis(),
        outage.as_millis()
    ));
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!(
        *unknown, 0,
        "a retry with the same key must not create a second notification"
    );
    assert!(*extra <= max_extra, "{extra} extra");
    assert!(
        *slowest_takeover <= MAX_TAKEOVER_TIME,
        "{slowest_takeover:?}"
    );
}

/// Kills the oldest process and starts another. The start-up time counts, because the other
/// processes continue.
async fn kill_oldest_worker(
    cluster: &NotifyCluster,
    load: &Load,
    replicas: &mut Vec<Replica>,
) -> Kill {
    let (victim, kill) = (replicas.remove(0), Kill::now());
    victim.running.kill().await;
    load.set_replicas(replicas);
    replicas.push(cluster.replica().await);
    load.set_replicas(replicas);
    kill
}

async fn kill_postgres(load: &Load, database: &mut OwnPostgres) -> Kill {
    let at = Instant::now();
    database.kill().await;
    database.restart().await;
    load.retry_now();
    Kill {
        at,
        recovered_at: Instant::now(),
    }
}

async fn kill_redis(redis: &mut RedisServer) -> Kill {
    let kill = Kill::now();
    redis.kill().await;
    redis.restart().await;
    kill
}

#[tokio::test]
async fn kills_of_any_component_lose_nothing() {
    let mut database = OwnPostgres::start().await;
    let mut redis = RedisServer::start(&[]).await;
    let mut cluster = NotifyCluster::over(database.url(), WITH_CACHE).await;
    cluster.cache = redis.url();
    cluster.rate = Some(1_000_000);
    let mut replicas = vec![cluster.replica().await, cluster.replica().await];
    let load = Load::on(&replicas);
    let killed = async {
        let mut killed = Vec::new();
        for _ in 0..kills() {
            load.wait_for_accepted(40).await;
            killed.push(kill_postgres(&load, &mut database).await);
            load.wait_for_accepted(40).await;
            killed.push(kill_redis(&mut redis).await);
            load.wait_for_accepted(40).await;
            killed.push(kill_oldest_worker(&cluster, &load, &mut replicas).await);
        }
        load.wait_for_accepted(40).await;
        killed
    };
    let (posted, killed) = Box::pin(load.during(&cluster, killed)).await;
    assert_guarantees(
        &verdict(&cluster, &posted, &killed).await,
        &killed,
        "PostgreSQL, Redis and workers in turn",
    );
    for replica in replicas {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
    database.stop().await;
}

#[tokio::test]
async fn killed_single_process_over_sqlite_loses_nothing() {
    let database = sqlite().await;
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    let mut replicas = vec![cluster.replica().await];
    let load = Load::on(&replicas);
    let killed = async {
        let mut killed = Vec::new();
        for _ in 0..kills() {
            load.wait_for_accepted(40).await;
            killed.push(kill_oldest_worker(&cluster, &load, &mut replicas).await);
        }
        load.wait_for_accepted(40).await;
        killed
    };
    let (posted, killed) = Box::pin(load.during(&cluster, killed)).await;
    assert_guarantees(
        &verdict(&cluster, &posted, &killed).await,
        &killed,
        "the only process over SQLite",
    );
    for replica in replicas {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}

/// `POSTERN_TEST_OLDER` may name the `postern-notify` of an older release, whose processes are
/// replaced.
#[tokio::test]
async fn rolling_restart_loses_and_repeats_nothing() {
    let database = postgres().await;
    let mut cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    cluster.older = Env::of_process()
        .get("POSTERN_TEST_OLDER")
        .map(PathBuf::from);
    let mut replicas = vec![cluster.replica().await, cluster.replica().await];
    cluster.older = None;
    let load = Load::on(&replicas);
    let restarted = async {
        let mut stopped = Vec::new();
        for _ in 0..replicas.len() {
            load.wait_for_accepted(100).await;
            let oldest = replicas.remove(0);
            replicas.push(cluster.replica().await);
            load.set_replicas(&replicas);
            load.wait_for_accepted(20).await;
            stopped.push(Kill::now());
            assert_eq!(oldest.running.stop("TERM").await.status, Some(0));
        }
        load.wait_for_accepted(100).await;
        stopped
    };
    let (posted, stopped) = Box::pin(load.during(&cluster, restarted)).await;
    let verdict = verdict(&cluster, &posted, &stopped).await;
    assert!(verdict.lost.is_empty(), "lost: {:?}", verdict.lost);
    assert_eq!(
        (verdict.extra, verdict.unknown),
        (0, 0),
        "claimed rows are returned, calls in progress are completed"
    );
    assert!(
        verdict.slowest_takeover < Duration::from_secs(5),
        "no notification waited for a lease: {:?}",
        verdict.slowest_takeover
    );
}
