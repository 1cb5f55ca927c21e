//! The order in which the provider hears of things: by its own record. `POSTERN_TEST_WAITING` says
//! how many wait (default 2000) and `POSTERN_TEST_LOW` how many LOW ones (default 20000): the same
//! tests are the long runs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use postern_common::Clock;
use postern_common::config::Env;
use postern_common::database::testing::{postgres, sqlite};
use postern_tests::note;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::notify_postgres::OwnPostgres;
use crate::notify_stage::{Call, Replica, Stage};

const PERMITS: usize = 16;
const ONE: Option<usize> = Some(1);
const SETTINGS: &str = "[queue]\nsms_permits = 16";
const PRIORITIES: [&str; 4] = ["CRITICAL", "HIGH", "NORMAL", "LOW"];
/// When NORMAL ones, having waited so long, are promoted.
const NORMAL_IS_LATE: Duration = Duration::from_secs(120);
/// CRITICAL ones of the run with a million, and how many there are in a second.
const CRITICAL: usize = 200;
const PER_SECOND: u64 = 50;

fn figure(variable: &str, default: usize) -> usize {
    Env::of_process()
        .get(variable)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn patience(rows: usize) -> Duration {
    Duration::from_secs(90 + rows as u64 / 200)
}

/// What came out of its order, of these.
#[derive(Debug)]
struct Disorder {
    /// Most that were older than one and not called yet, when it was called. They are in hand: what
    /// is claimed, is in order.
    passed: usize,
    /// Those called more than twice as many places from their own as may be in hand: place, own
    /// place, when.
    far: Vec<(usize, usize, Duration)>,
    /// How many places any was called from its own, at most.
    most: usize,
}

/// Calls that were out before the rest was accepted are left out.
#[track_caller]
fn disorder(expected: &[String], calls: &[Call]) -> Disorder {
    let places: HashMap<&str, usize> = expected
        .iter()
        .enumerate()
        .map(|(place, id)| (id.as_str(), place))
        .collect();
    let heard: Vec<_> = calls
        .iter()
        .filter_map(|call| Some((*places.get(call.id.as_str())?, call.at)))
        .collect();
    assert_eq!(
        heard.len(),
        expected.len(),
        "each is called once: none of them was in hand when anything was killed"
    );
    let mut uncalled: BTreeSet<usize> = (0..expected.len()).collect();
    let mut found = Disorder {
        passed: 0,
        far: Vec::new(),
        most: 0,
    };
    for (place, (own, at)) in heard.iter().enumerate() {
        uncalled.remove(own);
        found.passed = found.passed.max(uncalled.range(..own).count());
        let away = place.abs_diff(*own);
        found.most = found.most.max(away);
        if away > 2 * PERMITS {
            found
                .far
                .push((place, *own, at.saturating_duration_since(heard[0].1)));
        }
    }
    found
}

/// Accepts so many of all four priorities, mixed; their ids by priority, each in the order of
/// acceptance.
async fn accept_mixed(stage: &Stage, replica: &Replica, count: usize) -> [Vec<String>; 4] {
    let mut expected: [Vec<String>; 4] = Default::default();
    let batch: Vec<&str> = (0..count.min(1000))
        .map(|n| PRIORITIES[(n * 7 + n / 3) % 4])
        .collect();
    while expected.iter().map(Vec::len).sum::<usize>() < count {
        for (id, priority) in stage
            .post_batch(replica, &batch)
            .await
            .into_iter()
            .zip(&batch)
        {
            let class = PRIORITIES
                .iter()
                .position(|known| known == priority)
                .expect("one of four");
            expected[class].push(id);
        }
    }
    expected
}

/// As many as a process may have in hand, at the provider, which does not answer.
async fn fill_the_hands(stage: &Stage, replica: &Replica) -> Vec<String> {
    stage.provider.hold();
    let first = stage.post_batch(replica, &["CRITICAL"; PERMITS]).await;
    stage
        .provider
        .until(Duration::from_secs(60), |calls| calls.len() == PERMITS)
        .await;
    first
}

/// The record once it has all of these; what was in hand may be called again.
async fn once_called(stage: &Stage, ids: &[&[String]]) -> Vec<Call> {
    let ids: HashSet<&str> = ids.iter().copied().flatten().map(String::as_str).collect();
    let all = |calls: &[Call]| {
        calls.len() >= ids.len()
            && ids.is_subset(&calls.iter().map(|call| call.id.as_str()).collect())
    };
    stage.provider.until(patience(ids.len()), all).await
}

/// Within a priority in the order of acceptance, and over all CRITICAL, HIGH, NORMAL, LOW, but for
/// what is in hand at once; says how far off, within a priority and over all. In one thread none is
/// far from its place: on several, a call that the machine holds up in hand is passed by any number
/// of younger ones, a handful at a time.
#[track_caller]
fn hold_to_the_order(
    expected: &[Vec<String>; 4],
    calls: &[Call],
    age: Duration,
    threads: Option<usize>,
) -> (usize, usize) {
    let all = expected.concat();
    let within = |class: &[String]| {
        let found = disorder(class, calls);
        assert!(found.passed < PERMITS, "{found:?}");
        assert!(threads != ONE || found.far.is_empty(), "{found:?}");
        found.most
    };
    let over_all = disorder(&all, calls);
    // CRITICAL is before all others, however late they are.
    within(&[&expected[0][..], &all[expected[0].len()..][..1]].concat());
    // After that a class that is late for its target has a share beside the one above it.
    if age <= NORMAL_IS_LATE {
        within(&all);
    }
    (
        expected
            .iter()
            .map(|class| within(class))
            .max()
            .unwrap_or(0),
        over_all.most,
    )
}

/// A stage whose replicas have so many threads; none: one for each core, as delivered.
async fn with_threads(database: &str, threads: Option<usize>) -> Stage {
    let mut stage = Stage::over(database, SETTINGS).await;
    stage.threads = threads;
    stage
}

async fn order_of_many(database: &str, store: &str, threads: Option<usize>) {
    let stage = with_threads(database, threads).await;
    let replica = stage.replica().await;
    let first = fill_the_hands(&stage, &replica).await;
    let accepted = Instant::now();
    let expected = accept_mixed(&stage, &replica, figure("POSTERN_TEST_WAITING", 2000)).await;
    let (all, began) = (expected.concat(), Instant::now());
    stage.provider.let_go();
    let calls = once_called(&stage, &[&first, &all]).await;
    let took = began.elapsed();
    let (within, over_all) = hold_to_the_order(&expected, &calls, accepted.elapsed(), threads);
    note(&format!(
        "notify: {} waiting of four priorities over {store}: at most {within} places off within a priority and {over_all} \
         over all, with {PERMITS} in hand{}; {} delivered/s (LOW waits for calm at the end)",
        all.len(),
        if threads == ONE {
            ", in one thread"
        } else {
            ""
        },
        all.len() as u128 * 1000 / took.as_millis().max(1)
    ));
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn the_order_is_strict_and_fair_with_thousands_waiting_and_a_session_that_sits_in_its_transaction()
 {
    let database = postgres().await;
    // The tables are there before the session begins.
    drop(Stage::over(&database.url, SETTINGS).await.replica().await);
    // Nothing that is deleted from now on can be cleaned away.
    let mut idle = PgConnection::connect(&database.url)
        .await
        .expect("connects");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("begins");
    idle.execute("SELECT count(*) FROM notify_queue")
        .await
        .expect("has a snapshot");
    order_of_many(&database.url, "PostgreSQL with an idle transaction", ONE).await;
    order_of_many(&database.url, "PostgreSQL with an idle transaction", None).await;
    idle.execute("ROLLBACK")
        .await
        .expect("it was held all the time");
}

#[tokio::test]
async fn the_order_is_strict_and_fair_over_sqlite() {
    order_of_many(&sqlite().await.url, "SQLite", ONE).await;
    order_of_many(&sqlite().await.url, "SQLite", None).await;
}

/// What waits when everything is killed.
const BACKLOG: usize = 600;

#[tokio::test]
async fn what_waits_keeps_its_order_when_the_process_and_postgresql_are_killed() {
    let mut database = OwnPostgres::start().await;
    let stage = with_threads(database.url(), ONE).await;
    let (accepted, replica) = (Instant::now(), stage.replica().await);
    let first = fill_the_hands(&stage, &replica).await;
    let expected = accept_mixed(&stage, &replica, BACKLOG).await;
    database.kill().await;
    replica.running.kill().await;
    database.again().await;
    let replica = stage.replica().await;
    stage.provider.let_go();
    let calls = once_called(&stage, &[&first, &expected.concat()]).await;
    hold_to_the_order(&expected, &calls, accepted.elapsed(), ONE);
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    database.stop().await;
}

#[tokio::test]
async fn what_waits_keeps_its_order_when_the_one_process_over_sqlite_is_killed() {
    let database = sqlite().await;
    let stage = with_threads(&database.url, ONE).await;
    let (accepted, replica) = (Instant::now(), stage.replica().await);
    let first = fill_the_hands(&stage, &replica).await;
    let expected = accept_mixed(&stage, &replica, BACKLOG).await;
    replica.running.kill().await;
    let replica = stage.replica().await;
    stage.provider.let_go();
    let calls = once_called(&stage, &[&first, &expected.concat()]).await;
    hold_to_the_order(&expected, &calls, accepted.elapsed(), ONE);
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

/// The lanes of text messages: first attempts of CRITICAL ones, and of LOW ones.
pub(crate) const CRITICAL_LANE: i16 = 8;
const LOW_LANE: i16 = 14;

/// So many text messages in a lane, as they would stand there had they been accepted.
pub(crate) async fn fill(url: &str, lane: i16, rows: usize) {
    let sql = format!(
        "WITH now AS (SELECT {} + n AS ms, n FROM generate_series(0, {rows} - 1) n),
        ids AS (SELECT n, ms, lpad(to_hex(ms), 12, '0') AS h FROM now),
        made AS (SELECT n, ms, (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id FROM ids),
        recorded AS (INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
            SELECT id, {lane}, 'service:document', 'welcome', 1, 'en', '{{\"phone\":\"+491701234567\"}}', '{{\"name\":\"low\"}}', ms FROM made)
        INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, {lane}, ms << 12, 0, 0 FROM made",
        // The first of them were accepted as long ago as there are rows, a millisecond each.
        Clock::system().now().0 - i64::try_from(rows).unwrap_or(0)
    );
    let mut connection = PgConnection::connect(url).await.expect("connects");
    connection
        .execute(AssertSqlSafe(sql))
        .await
        .expect("the rows are good");
    connection
        .execute("ANALYZE")
        .await
        .expect("statistics as autovacuum would make them");
}

#[tokio::test]
async fn critical_ones_flow_while_low_ones_wait() {
    let alone = critical_beside_low(ONE).await;
    assert!(
        alone[CRITICAL - 1] <= PERMITS,
        "{alone:?}: more LOW ones than were in hand already"
    );
    // On several threads the machine may hold one up in hand, while others go; it holds up few of
    // them for long.
    let shared = critical_beside_low(None).await;
    assert!(shared[CRITICAL * 9 / 10] <= 2 * PERMITS, "{shared:?}");
}

/// How many LOW ones were called between the answer to a CRITICAL one and its own call, for each of
/// them, the least first.
async fn critical_beside_low(threads: Option<usize>) -> Vec<usize> {
    let low = figure("POSTERN_TEST_LOW", 20_000);
    let database = postgres().await;
    let stage = with_threads(&database.url, threads).await;
    let replica = stage.replica().await;
    fill(&database.url, LOW_LANE, low).await;
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / PER_SECOND));
    let mut posted = HashMap::new();
    for number in 0..CRITICAL {
        tick.tick().await;
        let (key, began) = (format!("c-{number}"), Instant::now());
        let id = stage
            .try_post(&replica.url, &key, "critical", "CRITICAL")
            .await
            .expect("accepted");
        posted.insert(id, (began, Instant::now()));
    }
    let heard = |calls: &[Call]| {
        calls
            .iter()
            .filter(|call| posted.contains_key(&call.id))
            .count()
    };
    let calls = stage
        .provider
        .until(Duration::from_secs(60), |calls| heard(calls) == CRITICAL)
        .await;
    assert!(
        calls.len() - CRITICAL < low,
        "no LOW one was left: POSTERN_TEST_LOW is too small for this machine"
    );
    let urgent = || {
        calls
            .iter()
            .filter_map(|call| Some((call.at, *posted.get(&call.id)?)))
    };
    let mut waits: Vec<Duration> = urgent()
        .map(|(called, (began, _))| called.saturating_duration_since(began))
        .collect();
    waits.sort_unstable();
    let between = |(called, (_, accepted)): (Instant, (Instant, Instant))| {
        let low = calls.iter().filter(|call| !posted.contains_key(&call.id));
        low.filter(|call| call.at > accepted && call.at < called)
            .count()
    };
    let mut overtaken: Vec<usize> = urgent().map(between).collect();
    overtaken.sort_unstable();
    note(&format!(
        "notify: CRITICAL from POST to the provider's call, {PER_SECOND}/s for {} s with {low} LOW waiting ({} of them went \
         meanwhile, at most {} between the answer to one and its call){}: median {} ms, p99 {} ms",
        CRITICAL as u64 / PER_SECOND,
        calls.len() - CRITICAL,
        overtaken[CRITICAL - 1],
        if threads == ONE {
            ", in one thread"
        } else {
            ""
        },
        waits[CRITICAL / 2].as_millis(),
        waits[CRITICAL * 99 / 100].as_millis()
    ));
    drop(replica.running);
    overtaken
}
