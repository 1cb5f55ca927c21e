//! Tests of retention: old data is deleted, waiting rows are kept, and other sessions are not
//! blocked; dead workers.

use std::time::Duration;

use sqlx::Executor;

use super::*;
use crate::testing::{execute, postgres_store};

const DAY: Duration = Duration::from_secs(86_400);

/// Stores a completed notification and a waiting one.
async fn two(store: &Store) -> [NotificationId; 2] {
    let batch = orders(0, 2);
    ok(store.accept(&batch)).await;
    let claimed = claim(store, 1, ME, &[]).await;
    let done = ended(&claimed[0], ME, ResultKind::Sent, Next::Done);
    assert_eq!(ok(store.finish(&[done])).await, 1);
    [batch[0].id, batch[1].id]
}

async fn there(store: &Store, id: NotificationId) -> bool {
    !ok(store.read(&[id])).await.is_empty()
}

#[tokio::test]
async fn data_older_than_retention_is_deleted_unless_it_waits() {
    for (store, test) in stores().await {
        let [done, waiting] = two(&store).await;
        let [dead, delayed] = [
            notification(order_at(NOW) + 2, Priority::High),
            notification(order_at(NOW) + 3, Priority::High),
        ];
        ok(store.delete_before(NOW)).await;
        assert!(there(&store, done).await, "it is not older");
        let scheduled = NewNotification {
            send_at: Some(NOW.plus(DAY)),
            ..delayed
        };
        let ids = [dead.id, scheduled.id];
        ok(store.accept(&[dead, scheduled])).await;
        // An operator replays a dead letter at this moment: its transaction is not committed.
        let queue = "DELETE FROM notify_queue WHERE lane = 2";
        execute(&test.database, queue).await;
        let replayed = format!(
            "INSERT INTO notify_dead VALUES ('{}', 2, 1, 1, 0, NULL)",
            ids[0]
        );
        execute(&test.database, &replayed).await;
        let locked = match &test.database {
            Database::Postgres(pool) => {
                let mut replay = pool.begin().await.expect("a transaction begins");
                let lock = "SELECT id FROM notify_dead FOR UPDATE";
                replay.execute(lock).await.expect("the row is locked");
                Some(replay)
            }
            Database::Sqlite(_) => None,
        };
        ok(store.delete_before(NOW.plus(DAY))).await;
        assert!(!there(&store, done).await);
        assert!(there(&store, waiting).await && there(&store, ids[1]).await);
        assert_eq!(there(&store, ids[0]).await, locked.is_some());
    }
}

#[tokio::test]
async fn expired_rows_are_deleted_in_several_batches() {
    let (store, test) = postgres_store(4).await;
    let rows = "INSERT INTO notify_key SELECT 'c', n::text, gen_random_uuid(), '', n FROM generate_series(1, 10010) n";
    execute(&test.database, rows).await;
    let deleted = store.delete_idempotency_keys(Timestamp(10_008)).await;
    assert_eq!(deleted.expect("no error"), 10_007);
    let left = store.delete_idempotency_keys(Timestamp(i64::MAX)).await;
    assert_eq!(left.expect("no error"), 3);
}

#[tokio::test]
async fn worker_with_a_row_is_not_deleted_but_marked_dead() {
    for (store, test) in stores().await {
        for worker in [ME, OTHER] {
            ok(store.register_worker(worker, Some(NOW))).await;
        }
        ok(store.accept(&orders(0, 1))).await;
        claim(&store, 1, ME, &[]).await;
        for worker in [ME, OTHER] {
            ok(store.retire_worker(worker, true)).await;
        }
        let renewal = store.renew_workers(&[], Some(NOW), 1).await;
        assert_eq!(renewal.expect("no error").dead, [ME]);
        execute(&test.database, "DELETE FROM notify_worker").await;
        let registered = store.register_holders(Some(NOW)).await;
        assert_eq!(registered.expect("no error"), 1, "it holds a row");
        let renewal = store.renew_workers(&[ME], Some(NOW), 1).await;
        assert_eq!(renewal.expect("no error").renewed, [ME], "if it lives");
    }
}

#[tokio::test]
async fn dead_worker_cannot_renew() {
    for (store, _database) in stores().await {
        let later = |s| NOW.plus(Duration::from_secs(s));
        let renew = async |s, timeout_s: i64| {
            let renewal = store.renew_workers(&[ME], Some(later(s)), timeout_s * 1000);
            renewal.await.expect("the server answers")
        };
        ok(store.register_worker(ME, Some(NOW))).await;
        let renewal = renew(3, 3).await;
        assert_eq!(renewal.renewed, [ME]);
        assert!(renewal.dead.is_empty());
        let late = renew(20, 10).await;
        assert!(late.renewed.is_empty(), "it stays dead");
        assert_eq!(late.dead, [ME]);
        ok(store.accept(&orders(0, 1))).await;
        claim(&store, 1, ME, &[]).await;
        let deleted = ok(store.delete_dead_workers(later(4))).await;
        assert_eq!(deleted, 0, "the worker holds a row");
        let rescued = claim(&store, 1, OTHER, &[ME]).await;
        assert_eq!(rescued.len(), 1);
        assert_eq!(ok(store.delete_dead_workers(later(4))).await, 1);
    }
}
