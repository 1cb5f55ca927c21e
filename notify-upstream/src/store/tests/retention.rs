//! Tests of retention: old data is deleted, waiting rows are kept, and other sessions are not
//! blocked.

use std::time::{Duration, Instant};

use postern_common::database::DatabaseOptions;
use sqlx::Executor;

use super::*;
use crate::testing::execute;

const DAY: Duration = Duration::from_secs(86_400);

/// Stores a completed notification and a waiting one.
async fn two(store: &Store) -> [NotificationId; 2] {
    let batch = orders(0, 2);
    store.accept(&batch).await.expect("no error");
    let claimed = claim(store, 1, ME, &[]).await;
    let done = ended(&claimed[0], ME, ResultKind::Sent, Next::Done);
    assert_eq!(store.finish(&[done]).await.expect("no error"), 1);
    [batch[0].id, batch[1].id]
}

async fn there(store: &Store, id: NotificationId) -> bool {
    !store.read(&[id]).await.expect("no error").is_empty()
}

#[tokio::test]
async fn maintenance_keeps_waiting_rows() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 2)).await.expect("no error");
        store
            .maintain(NOW.plus(DAY * 7), NOW.plus(Duration::ZERO))
            .await
            .expect("no error");
        assert_eq!(claim(&store, 9, ME, &[]).await.len(), 2);
        store
            .suppress(&[SuppressionRow {
                kind: 0,
                address: vec![1; 32],
                category: String::new(),
                reason: "r".to_owned(),
            }])
            .await
            .expect("no error");
        assert_eq!(
            store.additions_since(NOW, 9).await.expect("no error").len(),
            1
        );
        assert_eq!(
            store
                .queue_depths(10)
                .await
                .expect("no error")
                .iter()
                .map(|depth| depth.rows)
                .sum::<i64>(),
            2
        );
    }
}

#[tokio::test]
async fn data_older_than_retention_is_deleted() {
    for (store, _database) in both().await {
        let [done, _] = two(&store).await;
        store
            .maintain(NOW.plus(DAY * 20), NOW)
            .await
            .expect("no error");
        assert!(there(&store, done).await, "it is not older");
        store
            .maintain(NOW.plus(DAY * 90), NOW.plus(DAY * 15))
            .await
            .expect("no error");
        assert!(!there(&store, done).await);
    }
}

#[tokio::test]
async fn dropping_a_partition_does_not_block_readers() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    store
        .maintain(NOW, Timestamp(0))
        .await
        .expect("partitions are created");
    let [done, _] = two(&store).await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let mut reader = pool.begin().await.expect("a transaction begins");
    reader
        .execute("SELECT count(*) FROM notify_record")
        .await
        .expect("no error");
    let began = Instant::now();
    let keep = || store.maintain(NOW.plus(DAY * 90), NOW.plus(DAY * 15));
    let kept = tokio::time::timeout(Duration::from_secs(8), keep()).await;
    kept.expect("the task completes in time")
        .expect("locked partitions are skipped");
    assert!(began.elapsed() < Duration::from_secs(8) && there(&store, done).await);
    reader.rollback().await.expect("the session ends");
    keep().await.expect("no error");
    assert!(!there(&store, done).await);
}

#[tokio::test]
async fn concurrent_starts_create_each_partition_once() {
    let test = testing::postgres().await;
    Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    for week in 0..5 {
        let starts = (0..6).map(async |_| {
            let options = DatabaseOptions::new("replica");
            let database = Database::open(&test.url, options).await;
            let store = Store::open(&database.expect("PostgreSQL answers"), 3).await;
            let store = store.expect("the store opens");
            store.maintain(NOW.plus(DAY * 7 * week), Timestamp(0)).await
        });
        for started in futures_util::future::join_all(starts).await {
            started.expect("partitions exist");
        }
    }
}

#[tokio::test]
async fn expired_rows_are_deleted_in_several_batches() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let rows = "INSERT INTO notify_key SELECT 'c', n::text, gen_random_uuid(), '', n FROM generate_series(1, 10010) n";
    execute(&test.database, rows).await;
    let deleted = store.delete_idempotency_keys(Timestamp(10_008)).await;
    assert_eq!(deleted.expect("no error"), 10_007);
    let left = store.delete_idempotency_keys(Timestamp(i64::MAX)).await;
    assert_eq!(left.expect("no error"), 3);
}

#[tokio::test]
async fn worker_with_a_row_is_not_deleted_but_marked_dead() {
    for (store, _database) in both().await {
        for worker in [ME, OTHER] {
            store
                .register_worker(worker, Some(NOW))
                .await
                .expect("no error");
        }
        store.accept(&orders(0, 1)).await.expect("no error");
        claim(&store, 1, ME, &[]).await;
        for worker in [ME, OTHER] {
            store.retire_worker(worker, true).await.expect("no error");
        }
        let renewal = store.renew_workers(&[], Some(NOW), 1).await;
        assert_eq!(renewal.expect("no error").dead, [ME]);
    }
}
