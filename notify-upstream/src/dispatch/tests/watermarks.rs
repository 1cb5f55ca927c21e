//! Tests of the cost of an idle transaction, which keeps every deleted row of the queue. The cost
//! is the number of visited blocks, which no other load on the machine affects.

use postern_common::database::Database;
use postern_common::database::testing::{self, TestDatabase};
use sqlx::{Connection, Executor, PgConnection};

use super::*;
use crate::notification::order_at;
use crate::store::{NewNotification, Record};

/// Number of deleted rows before the measurement.
const DEAD: usize = 10_000;

/// The number of visited blocks of the queue and its indexes.
const VISITED: &str = "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::int8
    FROM pg_statio_user_tables WHERE relname = 'notify_queue'";
/// Sessions report their statistics when they end.
const END_OTHERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle in transaction'";
const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle in transaction'";

fn row(order: Order) -> NewNotification {
    let record = Record {
        lane: Lane::first(Channel::Email, Priority::Normal),
        creator: "service:test".to_owned(),
        addressee: None,
        template: "welcome".to_owned(),
        template_version: 1,
        locale: "en".to_owned(),
        recipient: r#"{"email":"ada@example.com"}"#.to_owned(),
        variables: r#"{"name":"Ada"}"#.to_owned(),
        created_at: START,
        expires_at: None,
        request_id: None,
        trace_context: None,
    };
    NewNotification {
        id: OrderSequence::id(order),
        order,
        record,
        send_at: None,
        worker: None,
        key: None,
    }
}

/// A database with the number of orders assigned and of processes started, one minute each.
struct MeasuredQueue {
    test: TestDatabase,
    given: i64,
    processes: u64,
}

impl MeasuredQueue {
    async fn open() -> Self {
        let test = testing::postgres().await;
        let store = Store::open(&test.database, 4)
            .await
            .expect("the store opens");
        store
            .maintain(START, Timestamp(0))
            .await
            .expect("partitions are created");
        Self {
            test,
            given: 0,
            processes: 0,
        }
    }

    /// Starts a process, delivers `count` notifications and stops it. Returns the number of visited
    /// blocks.
    async fn cost(&mut self, count: usize) -> i64 {
        let before = self.visited().await;
        let database = Database::open(
            &self.test.url,
            postern_common::database::DatabaseOptions::new("process"),
        );
        let store = Store::open(&database.await.expect("the store opens"), 4)
            .await
            .expect("the store opens");
        self.processes += 1;
        let clock = Clock::manual(after(60 * self.processes));
        let mut rig = TestReplica::new(&store, &clock, 230).await;
        let first = order_at(clock.now());
        self.given += i64::try_from(count).expect("the number is small");
        let rows: Vec<_> = (first..).take(count).map(row).collect();
        for batch in rows.chunks(500) {
            store.accept(batch).await.expect("no error");
        }
        rig.dispatcher.scan_lanes().await.expect("no error");
        while rig.script.calls().len() < count {
            rig.dispatcher.claim_available().await.expect("no error");
            rig.settle().await;
        }
        clock.advance(Duration::from_secs(30));
        for _ in 0..SCANS_PER_WATERMARK_SAVE {
            rig.dispatcher.scan_lanes().await.expect("no error");
        }
        self.visited().await - before
    }

    async fn visited(&self) -> i64 {
        let mut observer = PgConnection::connect(&self.test.url)
            .await
            .expect("the connection succeeds");
        observer
            .execute(END_OTHERS)
            .await
            .expect("the sessions end");
        while sqlx::query_scalar::<_, i64>(OTHERS)
            .fetch_one(&mut observer)
            .await
            .expect("the request succeeds")
            > 0
        {
            tokio::task::yield_now().await;
        }
        sqlx::query_scalar(VISITED)
            .fetch_one(&mut observer)
            .await
            .expect("the request succeeds")
    }
}

/// Returns the cost of two thousand further deliveries, without the cost of the start.
async fn cost_of_2000(queue: &mut MeasuredQueue) -> i64 {
    let few = queue.cost(1000).await;
    queue.cost(3000).await - few
}

#[tokio::test]
async fn idle_transaction_does_not_increase_delivery_cost() {
    let (mut fresh, mut pinned) = (MeasuredQueue::open().await, MeasuredQueue::open().await);
    let mut idle = PgConnection::connect(&pinned.test.url)
        .await
        .expect("the connection succeeds");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("a transaction begins");
    idle.execute("SELECT count(*) FROM notify_queue")
        .await
        .expect("the notification has a snapshot");
    pinned.cost(DEAD).await;
    let (early, in_fresh) = (
        cost_of_2000(&mut pinned).await,
        cost_of_2000(&mut fresh).await,
    );
    pinned.cost(2 * DEAD).await;
    let late = cost_of_2000(&mut pinned).await;
    let (start, fresh_start) = (pinned.cost(1).await, fresh.cost(1).await);
    idle.execute("ROLLBACK").await.expect("the lock was held");
    assert!(
        late * 10 <= early * 11,
        "{late} blocks, {early} when a third of the rows lay there"
    );
    // With rows that cannot be vacuumed, an update finds no space in its page and writes to both
    // indexes.
    assert!(
        late * 10 <= in_fresh * 16,
        "{late} blocks, {in_fresh} in a fresh queue"
    );
    // A new process starts at the saved watermark, whatever precedes it.
    let lying = pinned.given;
    assert!(
        (start - fresh_start) * 10 <= lying,
        "{start} blocks for one of {lying} rows, {fresh_start} in a fresh queue"
    );
}

#[tokio::test]
async fn scan_passes_rows_leased_at_acceptance_once() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    store
        .maintain(START, Timestamp(0))
        .await
        .expect("partitions are created");
    let mut idle = PgConnection::connect(&test.url)
        .await
        .expect("the connection succeeds");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("a transaction begins");
    idle.execute("SELECT count(*) FROM notify_queue")
        .await
        .expect("the notification has a snapshot");
    let clock = clock();
    let mut rig = TestReplica::new(&store, &clock, 1).await;
    rig.step().await;
    for _ in 0..200 {
        rig.accept(Priority::Normal).await;
        rig.settle().await;
    }
    assert_eq!(rig.script.calls().len(), 200, "each leased at acceptance");
    let lane = Lane::first(Channel::Email, Priority::Normal);
    assert!(
        rig.dispatcher.lanes[lane.index()].cursor < order_at(START),
        "no row was claimed"
    );
    clock.advance(Duration::from_secs(5));
    rig.dispatcher.scan_lanes().await.expect("no error");
    assert!(
        rig.dispatcher.lanes[lane.index()].cursor < order_at(START),
        "rows of other replicas may be committed late"
    );
    clock.advance(Duration::from_secs(60));
    rig.workers.step().await.expect("lease renewal succeeds");
    for _ in 0..2 {
        rig.dispatcher.scan_lanes().await.expect("no error");
    }
    let state = rig.dispatcher.lanes[lane.index()];
    assert!(
        state.cursor > order_at(after(1)) && state.low > order_at(after(1)),
        "{state:?}"
    );
    let gate = rig.script.hold();
    let held = rig.accept(Priority::Normal).await;
    clock.advance(Duration::from_secs(5));
    rig.workers.step().await.expect("lease renewal succeeds");
    for _ in 0..12 {
        clock.advance(Duration::from_secs(5));
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.dispatcher.scan_lanes().await.expect("no error");
    }
    let state = rig.dispatcher.lanes[lane.index()];
    assert!(
        state.cursor > order_at(after(100)) && state.low <= order_at(after(66)),
        "one row is in delivery: {state:?}"
    );
    gate.notify_one();
    rig.settle().await;
    assert_eq!(rig.script.calls().last(), Some(&held));
    idle.execute("ROLLBACK").await.expect("the lock was held");
}

async fn begins_after_3000_s(store: &Store) {
    let low = order_at(after(3000));
    let marks = Lane::of(Channel::Email).map(|lane| LowWatermark {
        lane,
        low,
        cursor: 0,
    });
    store.save_low_watermarks(&marks).await.expect("no error");
}

#[tokio::test]
async fn full_scan_finds_rows_below_the_watermark() {
    for (store, _database) in stores().await {
        begins_after_3000_s(&store).await;
        store
            .accept(&[row(order_at(after(1000)))])
            .await
            .expect("the row is committed");
        let mut rig = TestReplica::new(&store, &Clock::manual(after(3600)), 1).await;
        assert_eq!(rig.step().await, 0, "the row is below the watermark");
        let stop = CancellationToken::new();
        let run = tokio::spawn(rig.dispatcher.run(stop.clone()));
        for _ in 0..4000 {
            if !rig.script.calls().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rig.script.calls().len(), 1, "found by the full scan");
        stop.cancel();
        run.await.expect("the session ends");
    }
}

#[tokio::test]
async fn clock_set_back_hides_no_rows_below_the_watermark() {
    for (store, _database) in stores().await {
        begins_after_3000_s(&store).await;
        let mut rig = TestReplica::new(&store, &Clock::manual(after(1000)), 1).await;
        store
            .accept(&[row(order_at(after(1000)))])
            .await
            .expect("no error");
        assert_eq!(rig.step().await, 1);
    }
}
