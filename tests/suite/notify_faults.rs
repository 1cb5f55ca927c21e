//! What is killed, stopped and raced while notifications flow. `POSTERN_TEST_KILLS` says how many kills a run has
//! (default 4): the same test is the long run.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postern_common::config::Env;
use postern_common::database::testing::postgres;
use postern_tests::note;
use tokio::sync::watch;

use crate::notify_postgres::OwnPostgres;
use crate::notify_stage::{Accepted, Replica, Stage, Verdict};

/// What one process has in hand at most.
const PERMITS: usize = 16;
const SETTINGS: &str = "[queue]\nsms_permits = 16";
/// Those who post at once.
const POSTERS: usize = 4;
/// A rescue takes 10 s until the dead are dead, 3 s until that is seen, and a look.
const RESCUE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(60);

fn kills() -> usize {
    Env::of_process().get("POSTERN_TEST_KILLS").and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Posters that go on until they are told to stop.
struct Load {
    targets: watch::Sender<Vec<String>>,
    accepted: watch::Sender<usize>,
    stop: watch::Sender<bool>,
}

impl Load {
    fn on(replicas: &[&Replica]) -> Self {
        let urls = replicas.iter().map(|replica| replica.url.clone()).collect();
        let (targets, accepted) = (watch::Sender::new(urls), watch::Sender::new(0));
        Self { targets, accepted, stop: watch::Sender::new(false) }
    }

    /// Everything that was accepted until the end of `faults`.
    async fn during<T>(&self, stage: &Stage, faults: impl Future<Output = T>) -> (Vec<Vec<Accepted>>, T) {
        let posters =
            join_all((0..POSTERS).map(|poster| {
                stage.post_until(poster, &self.targets, &self.accepted, self.stop.subscribe())
            }));
        let faults = async {
            let outcome = faults.await;
            self.stop.send_replace(true);
            outcome
        };
        tokio::join!(posters, faults)
    }

    /// Waits until so many more are accepted.
    async fn goes_on(&self, more: usize) {
        let mut accepted = self.accepted.subscribe();
        let wanted = *accepted.borrow_and_update() + more;
        let reached = tokio::time::timeout(PATIENCE, accepted.wait_for(|count| *count >= wanted)).await;
        let _ = reached.expect("notifications are accepted within a minute").expect("the sender is here");
    }
}

fn hold_to(verdict: &Verdict, kills: usize, what: &str) {
    let Verdict { accepted, lost, extra, unknown, slowest_rescue, displaced } = verdict;
    note(&format!(
        "notify: {kills} kills of {what} under load: {accepted} accepted, {} lost, {extra} extra sends (at most {}), \
         slowest rescue {} ms, at most {displaced} places late",
        lost.len(),
        kills * PERMITS,
        slowest_rescue.as_millis()
    ));
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!(*unknown, 0, "a key that was repeated is one notification");
}

#[tokio::test]
async fn workers_that_are_killed_lose_nothing_and_are_relieved_in_time() {
    let (database, kills) = (postgres().await, kills());
    let stage = Stage::over(&database.url, SETTINGS).await;
    let mut replicas = vec![stage.replica().await, stage.replica().await];
    let load = Load::on(&replicas.iter().collect::<Vec<_>>());
    let killed = async {
        let mut killed = Vec::new();
        for round in 0..kills {
            load.goes_on(40).await;
            let victim = replicas.remove(0);
            killed.push(Instant::now());
            victim.running.kill().await;
            load.targets.send_replace(vec![replicas[0].url.clone()]);
            if round % 2 == 0 {
                load.goes_on(20).await;
            }
            replicas.push(stage.replica().await);
            load.targets.send_replace(replicas.iter().map(|replica| replica.url.clone()).collect());
        }
        killed
    };
    let (posted, killed) = Box::pin(load.during(&stage, killed)).await;
    let ids: std::collections::BTreeSet<String> = posted.iter().flatten().map(|a| a.id.clone()).collect();
    let calls = stage.provider.until(PATIENCE, |calls| {
        let seen: std::collections::BTreeSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        ids.iter().all(|id| seen.contains(id.as_str()))
    });
    let verdict = Verdict::of(&posted, &calls.await, &killed);
    hold_to(&verdict, kills, "workers");
    assert!(verdict.extra <= kills * PERMITS, "{} extra", verdict.extra);
    assert!(verdict.slowest_rescue <= RESCUE, "{:?}", verdict.slowest_rescue);
    assert!(verdict.displaced <= 2 * PERMITS, "{} places", verdict.displaced);
}

#[tokio::test]
async fn a_database_that_is_killed_loses_nothing() {
    let kills = kills();
    let mut database = OwnPostgres::start().await;
    let stage = Stage::over(database.url(), SETTINGS).await;
    let replica = stage.replica().await;
    let load = Load::on(&[&replica]);
    let killed = async {
        let mut killed = Vec::new();
        for _ in 0..kills {
            load.goes_on(40).await;
            killed.push(Instant::now());
            database.kill().await;
            database.again().await;
            load.targets.send_modify(|_| {});
        }
        load.goes_on(40).await;
        killed
    };
    let (posted, killed) = Box::pin(load.during(&stage, killed)).await;
    let ids: std::collections::BTreeSet<String> = posted.iter().flatten().map(|a| a.id.clone()).collect();
    let calls = stage.provider.until(PATIENCE, |calls| {
        let seen: std::collections::BTreeSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        ids.iter().all(|id| seen.contains(id.as_str()))
    });
    let verdict = Verdict::of(&posted, &calls.await, &killed);
    hold_to(&verdict, kills, "PostgreSQL");
    assert!(verdict.extra <= kills * PERMITS, "{} extra", verdict.extra);
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    database.stop().await;
}

#[tokio::test]
async fn a_rolling_restart_loses_nothing_and_sends_nothing_twice() {
    let database = postgres().await;
    let stage = Stage::over(&database.url, SETTINGS).await;
    let mut replicas = vec![stage.replica().await, stage.replica().await];
    let load = Load::on(&replicas.iter().collect::<Vec<_>>());
    let urls = |replicas: &[Replica]| replicas.iter().map(|replica| replica.url.clone()).collect::<Vec<_>>();
    let restarted = async {
        let mut stopped = Vec::new();
        for _ in 0..replicas.len() {
            load.goes_on(100).await;
            let oldest = replicas.remove(0);
            replicas.push(stage.replica().await);
            load.targets.send_replace(urls(&replicas));
            load.goes_on(20).await;
            stopped.push(Instant::now());
            assert_eq!(oldest.running.stop("TERM").await.status, Some(0));
        }
        load.goes_on(100).await;
        stopped
    };
    let (posted, stopped) = Box::pin(load.during(&stage, restarted)).await;
    let ids: std::collections::BTreeSet<String> = posted.iter().flatten().map(|a| a.id.clone()).collect();
    let calls = stage.provider.until(PATIENCE, |calls| calls.len() >= ids.len()).await;
    let verdict = Verdict::of(&posted, &calls, &stopped);
    assert!(verdict.lost.is_empty(), "lost: {:?}", verdict.lost);
    assert_eq!(
        (verdict.extra, verdict.unknown),
        (0, 0),
        "what was not begun is handed back, what was begun is finished"
    );
    assert!(
        verdict.slowest_rescue < Duration::from_secs(5),
        "nobody waited for a lease: {:?}",
        verdict.slowest_rescue
    );
}

#[tokio::test]
async fn without_its_cache_everything_goes_on() {
    let database = postgres().await;
    let mut stage = Stage::over(&database.url, &format!("service_quota = 5\n{SETTINGS}")).await;
    stage.cache = "redis://127.0.0.1:1".to_owned();
    let replica = stage.replica().await;
    for number in 0..10 {
        let id =
            stage.try_post(&replica.url, &format!("k{number}"), "Ada", "NORMAL").await.expect("accepted");
        stage.settled(&replica, &id, "SENT").await;
    }
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn a_zombie_that_wakes_up_after_its_lease_changes_nothing() {
    let database = postgres().await;
    let stage = Stage::over(&database.url, SETTINGS).await;
    let zombie = stage.replica().await;
    stage.provider.hold();
    let id = stage.try_post(&zombie.url, "k", "Ada", "HIGH").await.expect("accepted");
    stage.provider.until(PATIENCE, |calls| calls.len() == 1).await;
    zombie.running.signal("STOP").await;
    let other = stage.replica().await;
    stage.provider.let_go();
    let stopped = Instant::now();
    stage.provider.until(PATIENCE, |calls| calls.len() == 2).await;
    assert!(stopped.elapsed() <= RESCUE, "{:?}", stopped.elapsed());
    stage.settled(&other, &id, "SENT").await;
    zombie.running.signal("CONT").await;
    stage.metric_reaches(&zombie, "postern_notify_lease_lost_total", 1).await;
    let view = stage.status(&other.url, &id).await;
    let kinds: Vec<&str> = view["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(kinds, ["QUEUED", "ATTEMPTED", "OUTCOME_UNKNOWN", "ATTEMPTED", "SENT"], "{view}");
    assert_eq!(stage.provider.calls().len(), 2, "the zombie begins nothing more");
    // It is a worker like any other again, under a new identity.
    let again = stage.try_post(&zombie.url, "k2", "Ada", "HIGH").await.expect("accepted");
    stage.settled(&zombie, &again, "SENT").await;
    for replica in [zombie, other] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}

#[tokio::test]
async fn an_attempt_that_was_cut_off_is_looked_up_and_not_repeated() {
    let database = postgres().await;
    let mut stage = Stage::over(&database.url, SETTINGS).await;
    stage.can_be_asked = true;
    let first = stage.replica().await;
    stage.provider.hold();
    let id = stage.try_post(&first.url, "k", "Ada", "HIGH").await.expect("accepted");
    stage.provider.until(PATIENCE, |calls| calls.len() == 1).await;
    first.running.kill().await;
    let second = stage.replica().await;
    stage.settled(&second, &id, "SENT").await;
    assert_eq!(stage.provider.calls().len(), 1, "the provider has it already");
    stage.provider.let_go();
    assert_eq!(second.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn one_key_on_two_replicas_at_once_is_one_notification() {
    let database = postgres().await;
    let stage = Stage::over(&database.url, SETTINGS).await;
    let replicas = [stage.replica().await, stage.replica().await];
    for round in 0..20 {
        let key = format!("double-{round}");
        let posts = (0..8).map(|n| stage.try_post(&replicas[n % 2].url, &key, "Ada", "NORMAL"));
        let ids: std::collections::BTreeSet<_> =
            join_all(posts).await.into_iter().map(|id| id.expect("201")).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    let calls = stage.provider.until(PATIENCE, |calls| calls.len() >= 20).await;
    let sent: std::collections::BTreeSet<_> = calls.iter().map(|call| &call.id).collect();
    assert_eq!((calls.len(), sent.len()), (20, 20));
    for replica in replicas {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}
