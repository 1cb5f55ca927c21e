//! Tests of the limit of stored reports.

use std::ops::Range;

use super::*;
use crate::store::row::MAX_RECEIPTS_PER_NOTIFICATION;

fn report(id: NotificationId, event_id: &str, kind: ReceiptKind) -> Receipt {
    Receipt {
        provider: "dsn".to_owned(),
        event_id: event_id.to_owned(),
        id,
        kind,
        at: NOW,
        code: None,
        detail: None,
    }
}

fn deferred(id: NotificationId, numbers: Range<usize>) -> Vec<Receipt> {
    numbers
        .map(|n| report(id, &format!("{id}-{n}"), ReceiptKind::Deferred))
        .collect()
}

#[tokio::test]
async fn receipts_per_notification_are_bounded() {
    let most = u64::try_from(MAX_RECEIPTS_PER_NOTIFICATION).expect("positive");
    for (store, _database) in stores().await {
        let (flooded, other) = (OrderSequence::id(1 << 40), OrderSequence::id(2 << 40));
        let mut stored = 0;
        for round in 0..10 {
            let first = 9 * round;
            stored += store
                .save_receipts(&deferred(flooded, first..first + 9))
                .await
                .expect("no error");
        }
        assert_eq!(stored, most, "in many batches");
        assert_eq!(
            store
                .save_receipts(&deferred(flooded, 0..500))
                .await
                .expect("no error"),
            0
        );
        let mixed: Vec<_> = deferred(other, 0..500)
            .into_iter()
            .chain(deferred(flooded, 500..501))
            .collect();
        assert_eq!(
            store.save_receipts(&mixed).await.expect("no error"),
            most,
            "in one batch, and of another one"
        );
    }
}

#[tokio::test]
async fn first_receipt_of_each_kind_is_stored_beyond_the_bound() {
    use ReceiptKind::{Bounced, Deferred, Delivered, Failed, Sent};
    for (store, _database) in stores().await {
        let id = OrderSequence::id(1 << 40);
        store
            .save_receipts(&deferred(id, 0..100))
            .await
            .expect("no error");
        for (kind, kept) in [
            (Deferred, 0),
            (Failed, 1),
            (Delivered, 1),
            (Sent, 1),
            (Bounced, 1),
        ] {
            let both = [1, 2].map(|n| report(id, &format!("{kind:?}-{n}"), kind));
            assert_eq!(
                store.save_receipts(&both).await.expect("no error"),
                kept,
                "{kind:?}"
            );
            assert_eq!(
                store.save_receipts(&both).await.expect("no error"),
                0,
                "{kind:?} once more"
            );
        }
    }
}
