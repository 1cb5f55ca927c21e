//! Claim and completion of batches, with SQLite and, if `POSTERN_TEST_POSTGRES` is set, PostgreSQL.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::config::Env;
use postern_common::database::testing::{self, TestDatabase};
use postern_notify::queue::OrderSequence;
use postern_notify::queue::{Channel, Lane, Priority};
use postern_notify::queue::{
    Claim, Claimed, Finished, NewNotification, Next, Record, ResultKind, ResultRow, Store,
};
use tokio::runtime::Runtime;

const WORKER: i64 = 1;
const LANE: Lane = Lane::first(Channel::Email, Priority::Normal);

/// A store with waiting rows.
struct BenchQueue {
    store: Store,
    sequence: OrderSequence,
    clock: Clock,
    after: i64,
    _database: TestDatabase,
}

impl BenchQueue {
    async fn open(database: TestDatabase) -> Self {
        let store = Store::open(&database.database, 4).await.expect("opens");
        let clock = Clock::system();
        store
            .maintain(clock.now(), Timestamp(0))
            .await
            .expect("partitions");
        store
            .register_worker(WORKER, Some(clock.now()))
            .await
            .expect("registers");
        Self {
            store,
            sequence: OrderSequence::new(clock.clone()),
            clock,
            after: 0,
            _database: database,
        }
    }

    async fn fill(&self, rows: usize) {
        let first = self.sequence.orders(rows);
        let row = |order| NewNotification {
            id: OrderSequence::id(order),
            order,
            record: Record {
                lane: LANE,
                creator: "service:bench".to_owned(),
                addressee: None,
                template: "welcome".to_owned(),
                template_version: 1,
                locale: "en".to_owned(),
                recipient: r#"{"email":"ada@example.com"}"#.to_owned(),
                variables: r#"{"name":"Ada"}"#.to_owned(),
                created_at: self.clock.now(),
                expires_at: None,
                request_id: None,
                trace_context: None,
            },
            send_at: None,
            worker: None,
            key: None,
        };
        let rows: Vec<NewNotification> = (first..).take(rows).map(row).collect();
        self.store.accept(&rows).await.expect("accepts");
    }

    async fn claim(&mut self, limit: usize) -> Vec<Claimed> {
        let claim = Claim {
            lane: LANE,
            after: self.after,
            limit: i64::try_from(limit).expect("few"),
            worker: WORKER,
            dead: &[],
            now: self.clock.now(),
        };
        let claimed = self.store.claim(&claim).await.expect("claims");
        assert_eq!(claimed.len(), limit, "enough rows wait");
        self.after = claimed.last().map_or(self.after, |row| row.order);
        claimed
    }

    async fn finish(&self, claimed: &[Claimed]) {
        let at = self.clock.now();
        let done = |row: &Claimed| Finished {
            id: row.id,
            fence: row.fence,
            worker: WORKER,
            lane: LANE,
            result: ResultRow {
                attempt: row.attempt,
                kind: ResultKind::Sent,
                began_at: Some(at),
                at,
                next_at: None,
                provider: Some("null".to_owned()),
                address: None,
                template_version: None,
                code: None,
                detail: None,
            },
            next: Next::Done,
        };
        let finished: Vec<Finished> = claimed.iter().map(done).collect();
        assert_eq!(
            self.store.finish(&finished).await.expect("finishes"),
            claimed.len()
        );
    }

    /// Returns the time that claims, or completions, of `times` batches take.
    async fn time(&mut self, times: u64, batch: usize, claims: bool) -> Duration {
        let mut taken = Duration::ZERO;
        for _ in 0..times {
            self.fill(batch).await;
            let began = Instant::now();
            let claimed = self.claim(batch).await;
            let claimed_in = began.elapsed();
            let began = Instant::now();
            self.finish(&claimed).await;
            taken += if claims { claimed_in } else { began.elapsed() };
        }
        taken
    }
}

fn batches(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let has_postgres = Env::of_process().get("POSTERN_TEST_POSTGRES").is_some();
    let mut queues = vec![(
        "SQLite",
        runtime.block_on(async { BenchQueue::open(testing::sqlite().await).await }),
    )];
    if has_postgres {
        queues.push((
            "PostgreSQL",
            runtime.block_on(async { BenchQueue::open(testing::postgres().await).await }),
        ));
    }
    for (name, queue) in &mut queues {
        for (what, claims) in [("claim", true), ("completion", false)] {
            let mut group = criterion.benchmark_group(format!("{what}, {name}"));
            for batch in [1_usize, 100] {
                group.throughput(Throughput::Elements(batch as u64));
                group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
                    bencher.iter_custom(|times| runtime.block_on(queue.time(times, batch, claims)));
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = batches
}
criterion_main!(benches);
