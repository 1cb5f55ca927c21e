//! What a session that sits in its transaction costs: it keeps every deleted row of the queue where
//! it is. Counted in blocks that are visited, which no other load on the machine changes.

use postern_common::database::Database;
use postern_common::database::testing::{self, TestDatabase};
use sqlx::{Connection, Executor, PgConnection};

use super::*;
use crate::notification::order_at;
use crate::store::{NewNotification, Record};

/// Deleted rows that lie about before the count begins.
const DEAD: usize = 10_000;

/// Every block of the queue and its indexes that was looked at.
const VISITED: &str = "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::int8
    FROM pg_statio_user_tables WHERE relname = 'notify_queue'";
/// A session tells what it has counted when it ends.
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

/// One database, how many orders it has given out, and how many processes have worked on it, a
/// minute each.
struct Queue {
    test: TestDatabase,
    given: i64,
    processes: u64,
}

impl Queue {
    async fn open() -> Self {
        let test = testing::postgres().await;
        let store = Store::open(&test.database, 4).await.expect("opens");
        store
            .maintain(START, Timestamp(0))
            .await
            .expect("partitions");
        Self {
            test,
            given: 0,
            processes: 0,
        }
    }

    /// A process that starts, delivers so many, and ends: how many blocks of the queue it has
    /// visited.
    async fn cost(&mut self, count: usize) -> i64 {
        let before = self.visited().await;
        let database = Database::open(
            &self.test.url,
            postern_common::database::Options::new("process"),
        );
        let store = Store::open(&database.await.expect("opens"), 4)
            .await
            .expect("opens");
        self.processes += 1;
        let clock = Clock::manual(after(60 * self.processes));
        let mut rig = TestReplica::new(&store, &clock, 230).await;
        let first = order_at(clock.now());
        self.given += i64::try_from(count).expect("some thousands");
        let rows: Vec<_> = (first..).take(count).map(row).collect();
        for batch in rows.chunks(500) {
            store.accept(batch).await.expect("accepted");
        }
        rig.dispatcher.scan_lanes().await.expect("looks");
        while rig.script.calls().len() < count {
            rig.dispatcher.pass().await.expect("claims");
            rig.settle().await;
        }
        clock.advance(Duration::from_secs(30));
        for _ in 0..SCANS_PER_WATERMARK_SAVE {
            rig.dispatcher.scan_lanes().await.expect("looks");
        }
        self.visited().await - before
    }

    async fn visited(&self) -> i64 {
        let mut observer = PgConnection::connect(&self.test.url)
            .await
            .expect("connects");
        observer.execute(END_OTHERS).await.expect("ends them");
        while sqlx::query_scalar::<_, i64>(OTHERS)
            .fetch_one(&mut observer)
            .await
            .expect("asks")
            > 0
        {
            tokio::task::yield_now().await;
        }
        sqlx::query_scalar(VISITED)
            .fetch_one(&mut observer)
            .await
            .expect("asks")
    }
}

/// What two thousand more deliveries cost, whatever the start does.
async fn cost_of_2000(queue: &mut Queue) -> i64 {
    let few = queue.cost(1000).await;
    queue.cost(3000).await - few
}

#[tokio::test]
async fn a_session_that_sits_in_its_transaction_makes_no_delivery_dearer_the_longer_it_sits() {
    let (mut fresh, mut pinned) = (Queue::open().await, Queue::open().await);
    let mut idle = PgConnection::connect(&pinned.test.url)
        .await
        .expect("connects");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("begins");
    idle.execute("SELECT count(*) FROM notify_queue")
        .await
        .expect("has a snapshot");
    pinned.cost(DEAD).await;
    let (early, in_fresh) = (
        cost_of_2000(&mut pinned).await,
        cost_of_2000(&mut fresh).await,
    );
    pinned.cost(2 * DEAD).await;
    let late = cost_of_2000(&mut pinned).await;
    let (start, fresh_start) = (pinned.cost(1).await, fresh.cost(1).await);
    idle.execute("ROLLBACK")
        .await
        .expect("it was held all the time");
    assert!(
        late * 10 <= early * 11,
        "{late} blocks, {early} when a third of the rows lay there"
    );
    // What cannot be cleaned away leaves an update no room in its own page, and it writes to both
    // indexes.
    assert!(
        late * 10 <= in_fresh * 16,
        "{late} blocks, {in_fresh} in a fresh queue"
    );
    // A start begins where the last one was, whatever lies before.
    let lying = pinned.given;
    assert!(
        (start - fresh_start) * 10 <= lying,
        "{start} blocks for one of {lying} rows, {fresh_start} in a fresh queue"
    );
}

#[tokio::test]
async fn looks_step_over_what_was_born_leased_once() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store
        .maintain(START, Timestamp(0))
        .await
        .expect("partitions");
    let mut idle = PgConnection::connect(&test.url).await.expect("connects");
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("begins");
    idle.execute("SELECT count(*) FROM notify_queue")
        .await
        .expect("has a snapshot");
    let clock = clock();
    let mut rig = TestReplica::new(&store, &clock, 1).await;
    rig.step().await;
    for _ in 0..200 {
        rig.accept(Priority::Normal).await;
        rig.settle().await;
    }
    assert_eq!(rig.script.calls().len(), 200, "each at once");
    let lane = Lane::first(Channel::Email, Priority::Normal);
    assert!(
        rig.dispatcher.lanes[lane.index()].cursor < order_at(START),
        "none was claimed"
    );
    clock.advance(Duration::from_secs(5));
    rig.dispatcher.scan_lanes().await.expect("looks");
    assert!(
        rig.dispatcher.lanes[lane.index()].cursor < order_at(START),
        "others may be late"
    );
    clock.advance(Duration::from_secs(60));
    rig.workers.step().await.expect("renews");
    for _ in 0..2 {
        rig.dispatcher.scan_lanes().await.expect("looks");
    }
    let state = rig.dispatcher.lanes[lane.index()];
    assert!(
        state.cursor > order_at(after(1)) && state.low > order_at(after(1)),
        "{state:?}"
    );
    let gate = rig.script.hold();
    let held = rig.accept(Priority::Normal).await;
    clock.advance(Duration::from_secs(5));
    rig.workers.step().await.expect("renews");
    for _ in 0..12 {
        clock.advance(Duration::from_secs(5));
        rig.workers.step().await.expect("renews");
        rig.dispatcher.scan_lanes().await.expect("looks");
    }
    let state = rig.dispatcher.lanes[lane.index()];
    assert!(
        state.cursor > order_at(after(100)) && state.low <= order_at(after(66)),
        "one is out: {state:?}"
    );
    gate.notify_one();
    rig.settle().await;
    assert_eq!(rig.script.calls().last(), Some(&held));
    idle.execute("ROLLBACK")
        .await
        .expect("it was held all the time");
}

async fn begins_after_3000_s(store: &Store) {
    let low = order_at(after(3000));
    let marks = Lane::of(Channel::Email).map(|lane| LowWatermark {
        lane,
        low,
        cursor: 0,
    });
    store.save_low_watermarks(&marks).await.expect("kept");
}

#[tokio::test]
async fn what_stands_below_the_mark_is_found_by_a_look_from_the_beginning() {
    for (store, _database) in stores().await {
        begins_after_3000_s(&store).await;
        store
            .accept(&[row(order_at(after(1000)))])
            .await
            .expect("committed late");
        let mut rig = TestReplica::new(&store, &Clock::manual(after(3600)), 1).await;
        assert_eq!(rig.step().await, 0, "it stands below");
        let stop = CancellationToken::new();
        let run = tokio::spawn(rig.dispatcher.run(stop.clone()));
        for _ in 0..4000 {
            if !rig.script.calls().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rig.script.calls().len(), 1, "found within seconds");
        stop.cancel();
        run.await.expect("ends");
    }
}

#[tokio::test]
async fn a_clock_that_was_set_back_hides_nothing_below_the_mark() {
    for (store, _database) in stores().await {
        begins_after_3000_s(&store).await;
        let mut rig = TestReplica::new(&store, &Clock::manual(after(1000)), 1).await;
        store
            .accept(&[row(order_at(after(1000)))])
            .await
            .expect("accepted");
        assert_eq!(rig.step().await, 1);
    }
}
