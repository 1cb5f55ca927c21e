//! The order in which the provider hears of things: by its own record. `POSTERN_TEST_WAITING` says how many wait (default
//! 2000) and `POSTERN_TEST_LOW` how many LOW ones (default 20000): the same tests are the long runs.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use postern_common::Clock;
use postern_common::config::Env;
use postern_common::database::testing::postgres;
use postern_tests::note;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::notify_stage::{Call, Stage};

const PERMITS: usize = 16;
const SETTINGS: &str = "[queue]\nsms_permits = 16";
const PRIORITIES: [&str; 4] = ["CRITICAL", "HIGH", "NORMAL", "LOW"];
/// When NORMAL ones, having waited so long, are promoted.
const NORMAL_IS_LATE: Duration = Duration::from_secs(120);
/// CRITICAL ones of the run with a million, and how many there are in a second.
const CRITICAL: usize = 200;
const PER_SECOND: u64 = 50;

fn figure(variable: &str, default: usize) -> usize {
    Env::of_process().get(variable).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn patience(rows: usize) -> Duration {
    Duration::from_secs(90 + rows as u64 / 200)
}

/// How many places each call is away from its own, at most; calls that were out before the rest was accepted are left out.
fn displaced(expected: &[String], calls: &[Call]) -> usize {
    let places: HashMap<&str, usize> =
        expected.iter().enumerate().map(|(place, id)| (id.as_str(), place)).collect();
    let heard = calls.iter().filter_map(|call| places.get(call.id.as_str()));
    heard.enumerate().map(|(place, own)| place.abs_diff(*own)).max().unwrap_or(0)
}

#[tokio::test]
async fn the_order_is_strict_and_fair_with_thousands_waiting_and_a_session_that_sits_in_its_transaction() {
    let waiting = figure("POSTERN_TEST_WAITING", 2000);
    let database = postgres().await;
    let stage = Stage::over(&database.url, SETTINGS).await;
    let replica = stage.replica().await;
    // Nothing that is deleted from now on can be cleaned away.
    let mut idle = PgConnection::connect(&database.url).await.expect("connects");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("begins");
    idle.execute("SELECT count(*) FROM notify_queue").await.expect("has a snapshot");

    stage.provider.hold();
    let first: Vec<String> = stage.post_batch(&replica, &["CRITICAL"; PERMITS]).await;
    stage.provider.until(Duration::from_secs(60), |calls| calls.len() == PERMITS).await;
    let mut expected: [Vec<String>; 4] = Default::default();
    let accepted = Instant::now();
    let batch: Vec<&str> = (0..1000).map(|n| PRIORITIES[(n * 7 + n / 3) % 4]).collect();
    while expected.iter().map(Vec::len).sum::<usize>() < waiting {
        for (id, priority) in stage.post_batch(&replica, &batch).await.into_iter().zip(&batch) {
            let class = PRIORITIES.iter().position(|known| known == priority).expect("one of four");
            expected[class].push(id);
        }
    }
    let (all_expected, began) = (expected.concat(), Instant::now());
    let total = first.len() + all_expected.len();
    stage.provider.let_go();
    // The first ones may be called again, if it took long to have the rest accepted.
    let all = |calls: &[Call]| {
        calls.len() >= total && calls.iter().map(|call| &call.id).collect::<HashSet<_>>().len() == total
    };
    let calls = stage.provider.until(patience(total), all).await;
    let took = began.elapsed();
    let within = expected.iter().map(|class| displaced(class, &calls)).max().unwrap_or(0);
    let over_all = displaced(&all_expected, &calls);
    note(&format!(
        "notify: {} waiting of four priorities with an idle transaction: at most {within} places off within a priority and \
         {over_all} over all, with {PERMITS} in hand; {} delivered/s (LOW waits for calm at the end)",
        all_expected.len(),
        all_expected.len() as u128 * 1000 / took.as_millis().max(1)
    ));
    assert!(within <= 2 * PERMITS, "{within} places within a priority");
    let first_classes = [&expected[0][..], &all_expected[expected[0].len()..][..1]].concat();
    assert!(
        displaced(&first_classes, &calls) <= 2 * PERMITS,
        "CRITICAL is before all others, however late they are"
    );
    // After that a class that is late for its target has a share beside the one above it.
    assert!(accepted.elapsed() > NORMAL_IS_LATE || over_all <= 2 * PERMITS, "{over_all} places");
    idle.execute("ROLLBACK").await.expect("it was held all the time");
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

/// So many LOW text messages, as they would stand there had they been accepted.
async fn fill_with_low(url: &str, rows: usize) {
    let sql = format!(
        "WITH now AS (SELECT {} + n AS ms, n FROM generate_series(0, {rows} - 1) n),
        ids AS (SELECT n, ms, lpad(to_hex(ms), 12, '0') AS h FROM now),
        made AS (SELECT n, ms, (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id FROM ids),
        recorded AS (INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
            SELECT id, 14, 'service:document', 'welcome', 1, 'en', '{{\"phone\":\"+491701234567\"}}', '{{\"name\":\"low\"}}', ms FROM made)
        INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, 14, ms << 12, 0, 0 FROM made",
        // The first of them were accepted as long ago as there are rows, a millisecond each.
        Clock::system().now().0 - i64::try_from(rows).unwrap_or(0)
    );
    let mut connection = PgConnection::connect(url).await.expect("connects");
    connection.execute(AssertSqlSafe(sql)).await.expect("the rows are good");
    connection.execute("ANALYZE").await.expect("statistics as autovacuum would make them");
}

#[tokio::test]
async fn critical_ones_flow_while_low_ones_wait() {
    let low = figure("POSTERN_TEST_LOW", 20_000);
    let database = postgres().await;
    let stage = Stage::over(&database.url, SETTINGS).await;
    let replica = stage.replica().await;
    fill_with_low(&database.url, low).await;
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / PER_SECOND));
    let mut posted = HashMap::new();
    for number in 0..CRITICAL {
        tick.tick().await;
        let (key, began) = (format!("c-{number}"), Instant::now());
        let id = stage.try_post(&replica.url, &key, "critical", "CRITICAL").await.expect("accepted");
        posted.insert(id, began);
    }
    let heard = |calls: &[Call]| calls.iter().filter(|call| posted.contains_key(&call.id)).count();
    let calls = stage.provider.until(Duration::from_secs(60), |calls| heard(calls) == CRITICAL).await;
    let mut waits: Vec<Duration> = calls
        .iter()
        .filter_map(|call| Some(call.at.saturating_duration_since(*posted.get(&call.id)?)))
        .collect();
    waits.sort_unstable();
    let (median, p99) = (waits[CRITICAL / 2], waits[CRITICAL * 99 / 100]);
    note(&format!(
        "notify: CRITICAL from POST to the provider's call, {PER_SECOND}/s for {} s with {low} LOW waiting ({} of them went \
         meanwhile): median {} ms, p99 {} ms",
        CRITICAL as u64 / PER_SECOND,
        calls.len() - CRITICAL,
        median.as_millis(),
        p99.as_millis()
    ));
    assert!(calls.len() - CRITICAL < low, "LOW ones were still waiting");
    drop(replica.running);
}
