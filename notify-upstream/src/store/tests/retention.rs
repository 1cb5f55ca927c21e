//! Keeping house: what is old goes, what waits stays, nobody waits for it.

use std::time::{Duration, Instant};

use sqlx::Executor;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

/// One that is over and one that waits.
async fn two(store: &Store) -> [NotificationId; 2] {
    let batch = orders(0, 2);
    store.accept(&batch).await.expect("accepted");
    let claimed = claim(store, 0, 1, ME, &[]).await;
    let done = ended(&claimed[0], ME, ResultKind::Sent, Next::Done);
    assert_eq!(store.finish(&[done]).await.expect("finishes"), 1);
    [batch[0].id, batch[1].id]
}

async fn there(store: &Store, id: NotificationId) -> bool {
    !store.read(&[id]).await.expect("reads").is_empty()
}

#[tokio::test]
async fn house_is_kept_without_losing_what_waits() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 2)).await.expect("accepted");
        store
            .maintain(NOW.plus(DAY * 7), NOW.plus(Duration::ZERO))
            .await
            .expect("keeps");
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
            .expect("notes");
        assert_eq!(
            store.suppressed_since(NOW, 9).await.expect("looks").len(),
            1
        );
        assert_eq!(
            store
                .queue_depths(10)
                .await
                .expect("counts")
                .iter()
                .map(|depth| depth.rows)
                .sum::<i64>(),
            2
        );
    }
}

#[tokio::test]
async fn what_is_older_than_is_kept_is_dropped() {
    for (store, _database) in both().await {
        let [done, _] = two(&store).await;
        store
            .maintain(NOW.plus(DAY * 20), NOW)
            .await
            .expect("keeps");
        assert!(there(&store, done).await, "it is not older");
        store
            .maintain(NOW.plus(DAY * 90), NOW.plus(DAY * 15))
            .await
            .expect("keeps");
        assert!(!there(&store, done).await);
    }
}

#[tokio::test]
async fn nobody_waits_long_behind_the_dropping_of_what_somebody_reads() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.maintain(NOW, Timestamp(0)).await.expect("partitions");
    let [done, _] = two(&store).await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let mut reader = pool.begin().await.expect("begins");
    reader
        .execute("SELECT count(*) FROM notify_record")
        .await
        .expect("reads");
    let began = Instant::now();
    let keep = || store.maintain(NOW.plus(DAY * 90), NOW.plus(DAY * 15));
    let kept = tokio::time::timeout(Duration::from_secs(8), keep()).await;
    kept.expect("in time")
        .expect("what is locked is left for the next round");
    assert!(began.elapsed() < Duration::from_secs(8) && there(&store, done).await);
    reader.rollback().await.expect("ends");
    keep().await.expect("keeps");
    assert!(!there(&store, done).await);
}

#[tokio::test]
async fn a_worker_that_holds_a_row_does_not_go_without_being_dead() {
    for (store, _database) in both().await {
        for worker in [ME, OTHER] {
            store.register_worker(worker, NOW).await.expect("registers");
        }
        store.accept(&orders(0, 1)).await.expect("accepted");
        claim(&store, 0, 1, ME, &[]).await;
        for worker in [ME, OTHER] {
            store.retire_worker(worker, true).await.expect("retires");
        }
        assert_eq!(store.dead_workers(NOW).await.expect("looks"), [ME]);
    }
}
