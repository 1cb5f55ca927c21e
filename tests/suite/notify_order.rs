//! The order of calls in the provider's record. `POSTERN_TEST_WAITING` sets the number of waiting
//! notifications (default 600) and `POSTERN_TEST_LOW` that of LOW ones (default 20000); long runs
//! use the same tests.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use postern_core::Clock;
use postern_core::config::Env;
use postern_harness::json;
use postern_harness::note;
use postern_store::database::testing::{postgres, sqlite};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::notify_cluster::{Call, NotifyCluster, Replica};
use postern_harness::stores::OwnPostgres;

const PERMITS: usize = 16;
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const ONE_THREAD: Option<usize> = Some(1);
const SETTINGS: &str = "[queue]\nsms_permits = 16";
const PRIORITIES: [&str; 4] = ["CRITICAL", "HIGH", "NORMAL", "LOW"];
/// Waiting time after which NORMAL notifications are promoted.
const NORMAL_PROMOTION_AGE: Duration = Duration::from_secs(120);
/// Number of CRITICAL notifications submitted while LOW ones wait, and their rate per second.
const CRITICAL_COUNT: usize = 200;
const CRITICAL_PER_SECOND: u64 = 50;

pub(crate) fn env_number(variable: &str, default: usize) -> usize {
    let (env, read) = (Env::of_process(), |text: &str| text.parse().ok());
    env.get(variable).and_then(read).unwrap_or(default)
}

fn delivery_timeout(rows: usize) -> Duration {
    Duration::from_secs(90 + rows as u64 / 200)
}

/// Deviations from the expected order.
#[derive(Debug)]
struct Disorder {
    /// Maximum number of older notifications that were not called yet when one was called. Claimed
    /// notifications may be called in any order.
    pending_older: usize,
    /// Notifications whose call was more than twice the claim limit away from their place: place,
    /// expected place, time.
    outliers: Vec<(usize, usize, Duration)>,
    /// Maximum distance of any call from its place.
    max_distance: usize,
}

/// Compares the order of `calls` with the expected one. Calls of other notifications are ignored.
#[track_caller]
fn disorder(expected: &[String], calls: &[Call]) -> Disorder {
    let places = expected.iter().map(String::as_str).zip(0..);
    let places: HashMap<&str, usize> = places.collect();
    let place = |call: &Call| Some((*places.get(call.id.as_str())?, call.at));
    let observed: Vec<_> = calls.iter().filter_map(place).collect();
    // Each is called once, because none was claimed at the time of the kill.
    assert_eq!(observed.len(), expected.len(), "calls");
    let mut uncalled: BTreeSet<usize> = (0..expected.len()).collect();
    let mut found = Disorder {
        pending_older: 0,
        outliers: Vec::new(),
        max_distance: 0,
    };
    for (place, (own, at)) in observed.iter().enumerate() {
        uncalled.remove(own);
        found.pending_older = found.pending_older.max(uncalled.range(..own).count());
        let distance = place.abs_diff(*own);
        found.max_distance = found.max_distance.max(distance);
        if distance > 2 * PERMITS {
            let time = at.saturating_duration_since(observed[0].1);
            found.outliers.push((place, *own, time));
        }
    }
    found
}

/// Submits `count` notifications of all priorities, mixed. Returns the ids by priority, each in the
/// order of acceptance.
async fn accept_mixed(
    cluster: &NotifyCluster,
    replica: &Replica,
    count: usize,
) -> [Vec<String>; 4] {
    let mut expected: [Vec<String>; 4] = Default::default();
    let batch: Vec<&str> = (0..count.min(1000))
        .map(|n| PRIORITIES[(n * 7 + n / 3) % 4])
        .collect();
    while expected.iter().map(Vec::len).sum::<usize>() < count {
        let ids = cluster.post_batch(replica, &batch).await;
        for (id, priority) in ids.into_iter().zip(&batch) {
            let class = PRIORITIES.iter().position(|known| known == priority);
            expected[class.expect("a known priority")].push(id);
        }
    }
    expected
}

/// Fills the claim limit of a process with calls to a provider that does not respond.
async fn occupy_all_workers(cluster: &NotifyCluster, replica: &Replica) -> Vec<String> {
    cluster.provider.pause_responses();
    let first = cluster.post_batch(replica, &["CRITICAL"; PERMITS]).await;
    let all = |calls: &[Call]| calls.len() == PERMITS;
    cluster.provider.until(STEP_TIMEOUT, all).await;
    first
}

/// Returns the record once it contains all of `ids`. Claimed notifications may be called again.
async fn wait_for_calls(cluster: &NotifyCluster, ids: &[&[String]]) -> Vec<Call> {
    let ids: HashSet<&str> = ids.iter().copied().flatten().map(String::as_str).collect();
    let all = |calls: &[Call]| {
        let called: HashSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        ids.is_subset(&called)
    };
    let timeout = delivery_timeout(ids.len());
    cluster.provider.until(timeout, all).await
}

/// Asserts the order of acceptance within a priority, and CRITICAL, HIGH, NORMAL, LOW overall,
/// except for claimed notifications, and reports the deviations. With one thread, no call is far
/// from its place; with several, a delayed call is overtaken by a few younger ones at a time.
#[track_caller]
fn assert_order(
    expected: &[Vec<String>; 4],
    calls: &[Call],
    age: Duration,
    threads: Option<usize>,
) -> (usize, usize) {
    let all = expected.concat();
    let within = |class: &[String]| {
        let found = disorder(class, calls);
        assert!(found.pending_older < PERMITS, "{found:?}");
        let is_exact = found.outliers.is_empty();
        assert!(threads != ONE_THREAD || is_exact, "{found:?}");
        found.max_distance
    };
    let over_all = disorder(&all, calls);
    // CRITICAL comes first, however late it is.
    within(&[&expected[0][..], &all[expected[0].len()..][..1]].concat());
    // After that, a priority that misses its target has a share beside the one above it.
    if age <= NORMAL_PROMOTION_AGE {
        within(&all);
    }
    let distances = expected.iter().map(|class| within(class));
    (distances.max().unwrap_or(0), over_all.max_distance)
}

/// Starts a cluster whose replicas have this number of threads; `None` is the default of one per
/// core.
async fn with_threads(database: &str, threads: Option<usize>) -> NotifyCluster {
    let mut cluster = NotifyCluster::over(database, SETTINGS).await;
    cluster.threads = threads;
    cluster
}

async fn order_of_many(database: &str, threads: Option<usize>) {
    let cluster = with_threads(database, threads).await;
    let replica = cluster.replica().await;
    let first = occupy_all_workers(&cluster, &replica).await;
    let accepted = Instant::now();
    let expected = accept_mixed(&cluster, &replica, env_number("POSTERN_TEST_WAITING", 600)).await;
    let (all, began) = (expected.concat(), Instant::now());
    cluster.provider.resume_responses();
    let calls = wait_for_calls(&cluster, &[&first, &all]).await;
    let took = began.elapsed();
    let (within, over_all) = assert_order(&expected, &calls, accepted.elapsed(), threads);
    let per_s = all.len() as u128 * 1000 / took.as_millis().max(1);
    // The goal of the specification: thousands per minute.
    assert!(threads == ONE_THREAD || per_s * 60 >= 2000, "{per_s}/s");
    note(&format!(
        "notify: {} waiting of four priorities over PostgreSQL with an idle transaction: at most {within} places off within a priority and {over_all} \
         over all, with {PERMITS} claimed at a time{}; {per_s} delivered/s (LOW waits until the others are idle)",
        all.len(),
        threads.map_or("", |_| ", in one thread"),
    ));
    replica.stop().await;
}

#[tokio::test]
async fn order_is_strict_and_fair_beside_an_idle_transaction() {
    let database = postgres().await;
    // Creates the tables before the session begins.
    let cluster = NotifyCluster::over(&database.url, SETTINGS).await;
    drop(cluster.replica().await);
    // Dead rows cannot be vacuumed from now on.
    let idle = PgConnection::connect(&database.url).await;
    let mut idle = idle.expect("PostgreSQL accepts connections");
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM notify_queue";
    let taken = idle.execute(snapshot).await;
    taken.expect("the snapshot is taken");
    for threads in [ONE_THREAD, None] {
        order_of_many(&database.url, threads).await;
    }
    let ended = idle.execute("ROLLBACK").await;
    ended.expect("the session stayed idle in its transaction");
}

/// Notifications that wait at the kill.
const BACKLOG_SIZE: usize = 600;

/// What is stopped while notifications wait, besides the only worker.
async fn order_after_a_kill(url: &str, kill_database: impl AsyncFnOnce()) {
    let cluster = with_threads(url, ONE_THREAD).await;
    let (accepted, replica) = (Instant::now(), cluster.replica().await);
    let first = occupy_all_workers(&cluster, &replica).await;
    let expected = accept_mixed(&cluster, &replica, BACKLOG_SIZE).await;
    kill_database().await;
    replica.running.kill().await;
    let replica = cluster.replica().await;
    cluster.provider.resume_responses();
    let calls = wait_for_calls(&cluster, &[&first, &expected.concat()]).await;
    assert_order(&expected, &calls, accepted.elapsed(), ONE_THREAD);
    replica.stop().await;
}

#[tokio::test]
async fn waiting_keeps_its_order_when_postgresql_is_killed() {
    let mut database = OwnPostgres::start().await;
    let url = database.url().to_owned();
    order_after_a_kill(&url, async || {
        database.kill().await;
        database.restart().await;
    })
    .await;
}

#[tokio::test]
async fn waiting_keeps_its_order_over_a_killed_sqlite_process() {
    let database = sqlite().await;
    order_after_a_kill(&database.url, async || {}).await;
}

/// Lanes of text messages: first attempts of CRITICAL, and of LOW.
pub(crate) const CRITICAL_LANE: i16 = 8;
const LOW_LANE: i16 = 14;

/// Inserts messages into a lane, as if they had been accepted.
pub(crate) async fn insert_backlog(url: &str, lane: i16, rows: usize) {
    let recipient = match lane < CRITICAL_LANE {
        true => json!({"email": "low@example.com"}),
        false => json!({"phone": "+491701234567"}),
    };
    let sql = format!(
        "WITH now AS (SELECT {} + n AS ms, n FROM generate_series(0, {rows} - 1) n),
        ids AS (SELECT n, ms, lpad(to_hex(ms), 12, '0') AS h FROM now),
        made AS (SELECT n, ms, (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id FROM ids),
        recorded AS (INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
            SELECT id, {lane}, 'service:document', 'welcome', 1, 'en', '{recipient}', '{{\"name\":\"low\"}}', ms FROM made)
        INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, {lane}, ms << 12, 0, 0 FROM made",
        // Acceptance times one millisecond apart, ending now.
        Clock::system().now().0 - i64::try_from(rows).unwrap_or(0)
    );
    let connection = PgConnection::connect(url).await;
    let mut connection = connection.expect("PostgreSQL accepts connections");
    let inserted = connection.execute(AssertSqlSafe(sql)).await;
    inserted.expect("the rows are inserted");
    let analyzed = connection.execute("ANALYZE").await;
    analyzed.expect("statistics as autovacuum would make them");
}

/// The number of LOW ones that are called between the acceptance of a CRITICAL one and its own call is
/// bounded by what was already claimed.
#[tokio::test]
async fn critical_is_sent_while_low_waits() {
    let low = env_number("POSTERN_TEST_LOW", 20_000);
    let database = postgres().await;
    let cluster = with_threads(&database.url, ONE_THREAD).await;
    let replica = cluster.replica().await;
    insert_backlog(&database.url, LOW_LANE, low).await;
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / CRITICAL_PER_SECOND));
    let mut posted = HashMap::new();
    for number in 0..CRITICAL_COUNT {
        tick.tick().await;
        let (key, began) = (format!("c-{number}"), Instant::now());
        let id = cluster.accept(&replica, &key, "CRITICAL").await;
        posted.insert(id, (began, Instant::now()));
    }
    let is_critical = |call: &&Call| posted.contains_key(&call.id);
    let all = |calls: &[Call]| calls.iter().filter(is_critical).count() == CRITICAL_COUNT;
    let calls = cluster.provider.until(STEP_TIMEOUT, all).await;
    // Otherwise POSTERN_TEST_LOW is too small for this machine.
    assert!(calls.len() - CRITICAL_COUNT < low, "no LOW one was left");
    let urgent = || {
        let times = |call: &Call| Some((call.at, *posted.get(&call.id)?));
        calls.iter().filter_map(times)
    };
    let wait = |(called, (began, _)): (Instant, (Instant, Instant))| {
        called.saturating_duration_since(began)
    };
    let mut waits: Vec<Duration> = urgent().map(wait).collect();
    waits.sort_unstable();
    let between = |(called, (_, accepted)): (Instant, (Instant, Instant))| {
        let low = calls.iter().filter(|call| !is_critical(call));
        low.filter(|call| call.at > accepted && call.at < called)
            .count()
    };
    let mut overtaken: Vec<usize> = urgent().map(between).collect();
    overtaken.sort_unstable();
    note(&format!(
        "notify: CRITICAL from POST to the provider's call, {CRITICAL_PER_SECOND}/s for {} s with {low} LOW waiting ({} of them were sent \
         meanwhile, at most {} between the answer to one and its call), in one thread: median {} ms, p99 {} ms",
        CRITICAL_COUNT as u64 / CRITICAL_PER_SECOND,
        calls.len() - CRITICAL_COUNT,
        overtaken[CRITICAL_COUNT - 1],
        waits[CRITICAL_COUNT / 2].as_millis(),
        waits[CRITICAL_COUNT * 99 / 100].as_millis()
    ));
    drop(replica.running);
    assert!(overtaken[CRITICAL_COUNT - 1] <= PERMITS, "{overtaken:?}");
}
