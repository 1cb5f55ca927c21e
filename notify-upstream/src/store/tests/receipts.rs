//! Tests of stored reports and their limit.

use std::ops::Range;

use super::*;
use crate::store::row::MAX_RECEIPTS_PER_NOTIFICATION;

fn deferred(id: NotificationId, numbers: Range<usize>) -> Vec<ProviderReport> {
    numbers
        .map(|n| receipt(id, &format!("{id}-{n}"), ReceiptKind::Deferred))
        .collect()
}

async fn save(store: &Store, reports: &[ProviderReport]) -> u64 {
    ok(store.save_receipts("dsn", reports)).await
}

#[tokio::test]
async fn receipts_per_notification_are_bounded() {
    let most = u64::try_from(MAX_RECEIPTS_PER_NOTIFICATION).expect("positive");
    for (store, _database) in stores().await {
        let (flooded, other) = (OrderSequence::id(1 << 40), OrderSequence::id(2 << 40));
        let mut stored = 0;
        for round in 0..10 {
            let first = 9 * round;
            stored += save(&store, &deferred(flooded, first..first + 9)).await;
        }
        assert_eq!(stored, most, "in many batches");
        assert_eq!(save(&store, &deferred(flooded, 0..500)).await, 0);
        let mixed = [deferred(other, 0..500), deferred(flooded, 500..501)].concat();
        let stored = save(&store, &mixed).await;
        assert_eq!(stored, most, "in one batch, and of another one");
    }
}

#[tokio::test]
async fn first_receipt_of_each_kind_is_stored_beyond_the_bound() {
    use ReceiptKind::{Bounced, Deferred, Delivered, Failed, Sent};
    for (store, _database) in stores().await {
        let id = OrderSequence::id(1 << 40);
        save(&store, &deferred(id, 0..100)).await;
        for (kind, kept) in [
            (Deferred, 0),
            (Failed, 1),
            (Delivered, 1),
            (Sent, 1),
            (Bounced, 1),
        ] {
            let both = [1, 2].map(|n| receipt(id, &format!("{kind:?}-{n}"), kind));
            assert_eq!(save(&store, &both).await, kept, "{kind:?}");
            assert_eq!(save(&store, &both).await, 0, "{kind:?} once more");
        }
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
