//! Tests of retention: old data is deleted, waiting rows are kept, and other sessions are not
//! blocked.

use std::time::{Duration, Instant};

use sqlx::Executor;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

/// Stores a completed notification and a waiting one.
async fn two(store: &Store) -> [NotificationId; 2] {
    let batch = orders(0, 2);
    store.accept(&batch).await.expect("no error");
    let claimed = claim(store, 0, 1, ME, &[]).await;
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
        assert_eq!(claim(&store, 0, 9, ME, &[]).await.len(), 2);
        store
            .suppress(
                &[SuppressionRow {
                    kind: 0,
                    address: vec![1; 32],
                    reason: "r".to_owned(),
                }],
                NOW,
            )
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
async fn worker_with_a_row_is_not_deleted_but_marked_dead() {
    for (store, _database) in both().await {
        for worker in [ME, OTHER] {
            store.register_worker(worker, NOW).await.expect("no error");
        }
        store.accept(&orders(0, 1)).await.expect("no error");
        claim(&store, 0, 1, ME, &[]).await;
        for worker in [ME, OTHER] {
            store.retire_worker(worker, true).await.expect("no error");
        }
        assert_eq!(store.dead_workers(NOW).await.expect("no error"), [ME]);
    }
}
