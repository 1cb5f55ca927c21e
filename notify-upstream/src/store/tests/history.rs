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
        store
            .register_worker(ME, Some(NOW))
            .await
            .expect("no error");
        let renewal = renew(3, 3).await;
        assert_eq!(renewal.renewed, [ME]);
        assert!(renewal.dead.is_empty());
        let late = renew(20, 10).await;
        assert!(late.renewed.is_empty(), "it stays dead");
        assert_eq!(late.dead, [ME]);
        store.accept(&orders(0, 1)).await.expect("no error");
        claim(&store, 1, ME, &[]).await;
        assert_eq!(
            store.delete_dead_workers(later(4)).await.expect("no error"),
            0,
            "the worker holds a row"
        );
        let rescued = claim(&store, 1, OTHER, &[ME]).await;
        assert_eq!(rescued.len(), 1);
        assert_eq!(
            store.delete_dead_workers(later(4)).await.expect("no error"),
            1
        );
    }
}

#[tokio::test]
async fn receipts_are_unique_and_may_precede_the_result() {
    for (store, _database) in stores().await {
        let row = notification(order_at(NOW), Priority::Normal);
        let receipt = |event: &str, kind| Receipt {
            provider: "standard".to_owned(),
            event_id: event.to_owned(),
            id: row.id,
            kind,
            at: NOW,
            code: None,
            detail: Some("ok".to_owned()),
        };
        let both = [
            receipt("1", ReceiptKind::Delivered),
            receipt("2", ReceiptKind::Sent),
        ];
        assert_eq!(store.save_receipts(&both).await.expect("no error"), 2);
        assert_eq!(store.save_receipts(&both).await.expect("no error"), 0);
        assert!(store.read(&[row.id]).await.expect("no error").is_empty());
        store
            .accept(std::slice::from_ref(&row))
            .await
            .expect("no error");
        let entry = snapshot(&store, row.id).await.history;
        assert_eq!(
            entry
                .iter()
                .filter(|entry| matches!(entry, HistoryEntry::Receipt(..)))
                .count(),
            2
        );
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
        store.accept(&rows).await.expect("no error");
        for _ in 0..3 {
            let moved = store.move_due(due, 20).await.expect("no error");
            assert_eq!(moved.len(), 20);
        }
        let claimed = claim(&store, 100, ME, &[]).await;
        assert_eq!(claimed.iter().map(|row| row.id).collect::<Vec<_>>(), ids);
    }
}
