//! Tests of workers, dead letters, receipts and delayed rows.

use super::*;

#[tokio::test]
async fn dead_worker_cannot_renew() {
    for (store, _database) in stores().await {
        let later = |s| NOW.plus(std::time::Duration::from_secs(s));
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

#[tokio::test]
async fn receipts_are_unique_and_may_precede_the_result() {
    for (store, _database) in stores().await {
        let row = notification(order_at(NOW), Priority::Normal);
        let both = [
            receipt(row.id, "1\n", ReceiptKind::Delivered),
            receipt(row.id, "2", ReceiptKind::Sent),
        ];
        let foreign = ProviderReport {
            id: None,
            ..both[0].clone()
        };
        let reports = [&both[..], &[foreign]].concat();
        assert_eq!(ok(store.save_receipts("standard", &reports)).await, 2);
        assert_eq!(ok(store.save_receipts("standard", &both)).await, 0);
        assert!(ok(store.read(&[row.id])).await.is_empty());
        ok(store.accept(std::slice::from_ref(&row))).await;
        let entry = snapshot(&store, row.id).await.history;
        let receipts = entry.iter();
        let receipts = receipts.filter(|entry| matches!(entry, HistoryEntry::Receipt(..)));
        assert_eq!(receipts.count(), 2);
    }
}

#[tokio::test]
async fn rows_due_at_one_time_keep_their_order_over_moves() {
    for (store, _database) in stores().await {
        let due = NOW.plus(std::time::Duration::from_secs(60));
        let delayed = |row| NewNotification {
            send_at: Some(due),
            ..row
        };
        let mut rows: Vec<_> = orders(0, 60).into_iter().map(delayed).collect();
        let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        rows.reverse();
        ok(store.accept(&rows)).await;
        for _ in 0..3 {
            let moved = ok(store.move_due(due, 20)).await;
            assert_eq!(moved.len(), 20);
        }
        let claimed = claim(&store, 100, ME, &[]).await;
        assert_eq!(super::ids(&claimed), ids);
    }
}
