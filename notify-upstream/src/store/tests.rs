//! What the store promises, over both.

mod postgres;
mod receipts;
mod retention;
mod suppression;
mod upgrade;

use postern_common::database::testing::{self, TestDatabase};

use super::*;
use crate::notification::Lane;
use crate::notification::OrderSequence;
use crate::notification::{Channel, Priority, order_at};
use crate::store::row::ReceiptKind;

const NOW: Timestamp = Timestamp(1_763_600_000_000);
const ME: i64 = 7;
const OTHER: i64 = 8;

/// A store of each kind; the database lives as long as the value.
async fn both() -> Vec<(Store, TestDatabase)> {
    let mut stores = Vec::new();
    for test in testing::both().await {
        let store = Store::open(&test.database, 4).await.expect("opens");
        store.maintain(NOW, Timestamp(0)).await.expect("partitions");
        stores.push((store, test));
    }
    stores
}

fn lane(priority: Priority) -> Lane {
    Lane::first(Channel::Email, priority)
}

fn notification(order: Order, priority: Priority) -> NewNotification {
    NewNotification {
        id: OrderSequence::id(order),
        order,
        record: Record {
            lane: lane(priority),
            creator: "service:test".to_owned(),
            addressee: Some("ada".to_owned()),
            template: "welcome".to_owned(),
            template_version: 1,
            locale: "en".to_owned(),
            recipient: r#"{"email":"ada@example.com"}"#.to_owned(),
            variables: "{\"name\":\"Ada \\u0000 'x' \\\"y\\\" ü\"}".to_owned(),
            created_at: NOW,
            expires_at: None,
        },
        send_at: None,
        worker: None,
        key: None,
    }
}

fn orders(from: i64, count: i64) -> Vec<NewNotification> {
    (0..count)
        .map(|n| notification(order_at(NOW) + from + n, Priority::Normal))
        .collect()
}

async fn claim(store: &Store, after: Order, limit: i64, worker: i64, dead: &[i64]) -> Vec<Claimed> {
    let lane = lane(Priority::Normal);
    store
        .claim(&Claim {
            lane,
            after,
            limit,
            worker,
            dead,
            now: NOW,
        })
        .await
        .expect("claims")
}

fn ended(claimed: &Claimed, worker: i64, kind: ResultKind, next: Next) -> Finished {
    Finished {
        id: claimed.id,
        fence: claimed.fence,
        worker,
        lane: claimed.record.lane,
        result: ResultRow {
            attempt: claimed.attempt,
            kind,
            began_at: Some(NOW),
            at: NOW,
            next_at: next.due(),
            provider: Some("null".to_owned()),
            code: Some("why".to_owned()),
            detail: None,
            address: None,
            template_version: Some(2),
        },
        next,
    }
}

async fn snapshot(store: &Store, id: NotificationId) -> NotificationSnapshot {
    store
        .read(&[id])
        .await
        .expect("reads")
        .pop()
        .expect("there")
}

#[tokio::test]
async fn rows_are_claimed_once_in_order_and_whole() {
    for (store, _database) in both().await {
        let batch = orders(0, 50);
        assert!(store.accept(&batch).await.expect("accepted").is_empty());
        let first = claim(&store, 0, 20, ME, &[]).await;
        let second = claim(&store, first[19].order, 100, OTHER, &[]).await;
        let seen: Vec<_> = first.iter().chain(&second).map(|row| row.order).collect();
        assert_eq!(seen, batch.iter().map(|row| row.order).collect::<Vec<_>>());
        assert_eq!(first[0].record, batch[0].record);
        assert_eq!(
            (first[0].fence, first[0].attempt, first[0].lost),
            (1, 1, false)
        );
        assert!(
            claim(&store, 0, 100, OTHER, &[]).await.is_empty(),
            "all are leased"
        );
    }
}

#[tokio::test]
async fn a_key_is_good_once_per_caller_whatever_races() {
    for (store, _database) in both().await {
        let keyed = |order, creator: &str, key: &str| {
            let mut row = notification(order_at(NOW) + order, Priority::Normal);
            row.key = Some((key.to_owned(), [1; 32]));
            creator.clone_into(&mut row.record.creator);
            row
        };
        let batch = [
            keyed(1, "a", "k"),
            keyed(2, "a", "k"),
            keyed(3, "b", "k"),
            notification(order_at(NOW) + 4, Priority::Normal),
        ];
        assert_eq!(store.accept(&batch).await.expect("accepted"), [batch[1].id]);
        let existing = store
            .existing("a", "k")
            .await
            .expect("looks")
            .expect("there");
        assert_eq!(
            (existing.id, existing.fingerprint),
            (batch[0].id, vec![1; 32])
        );
        let racing = (10..30).map(|n| {
            let (store, row) = (store.clone(), keyed(n, "c", "race"));
            tokio::spawn(async move { store.accept(&[row]).await.expect("accepted").len() })
        });
        let refused: usize = futures_util::future::join_all(racing)
            .await
            .into_iter()
            .map(|n| n.expect("no panic"))
            .sum();
        assert_eq!(refused, 19);
        assert_eq!(
            claim(&store, 0, 100, ME, &[]).await.len(),
            4,
            "nothing of a refused row is stored"
        );
        assert_eq!(
            store
                .delete_idempotency_keys(NOW.plus(std::time::Duration::from_millis(1)))
                .await
                .expect("forgets"),
            3
        );
        assert_eq!(store.existing("a", "k").await.expect("looks"), None);
    }
}

#[tokio::test]
async fn born_leased_rows_are_nobody_elses_until_their_worker_dies() {
    for (store, _database) in both().await {
        let mut batch = orders(0, 2);
        batch[0].worker = Some(ME);
        store.accept(&batch).await.expect("accepted");
        let others = claim(&store, 0, 10, OTHER, &[]).await;
        assert_eq!(
            others.iter().map(|row| row.id).collect::<Vec<_>>(),
            [batch[1].id]
        );
        let rescued = claim(&store, 0, 10, OTHER, &[ME]).await;
        assert_eq!(
            (
                rescued.len(),
                rescued[0].fence,
                rescued[0].attempt,
                rescued[0].lost
            ),
            (1, 2, 2, true)
        );
        let entry = snapshot(&store, batch[0].id).await.history;
        let lost = entry.iter().any(
            |entry| matches!(entry, HistoryEntry::Result(row) if row.kind == ResultKind::Lost && row.attempt == 1),
        );
        assert!(lost, "{entry:?}");
    }
}

#[tokio::test]
async fn a_result_counts_only_under_its_fence() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 3)).await.expect("accepted");
        let mine = claim(&store, 0, 3, ME, &[]).await;
        let theirs = claim(&store, 0, 1, OTHER, &[ME]).await;
        assert_eq!(theirs[0].id, mine[0].id);
        let results: Vec<_> = mine
            .iter()
            .map(|row| ended(row, ME, ResultKind::Sent, Next::Done))
            .collect();
        assert_eq!(
            store.finish(&results).await.expect("finishes"),
            2,
            "the zombie's result is refused"
        );
        assert_eq!(
            store.finish(&results).await.expect("finishes"),
            0,
            "twice is once"
        );
        let sent = |history: &[HistoryEntry]| {
            history
                .iter()
                .filter(|entry| matches!(entry, HistoryEntry::Result(row) if row.kind == ResultKind::Sent))
                .count()
        };
        assert_eq!(sent(&snapshot(&store, mine[0].id).await.history), 0);
        assert_eq!(sent(&snapshot(&store, mine[1].id).await.history), 1);
        let result = ended(&theirs[0], OTHER, ResultKind::Sent, Next::Done);
        assert_eq!(store.finish(&[result]).await.expect("finishes"), 1);
    }
}

#[tokio::test]
async fn a_retry_waits_until_it_is_due_and_keeps_its_count() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 2)).await.expect("accepted");
        let claimed = claim(&store, 0, 2, ME, &[]).await;
        let due = NOW.plus(std::time::Duration::from_secs(60));
        let mut result = ended(&claimed[0], ME, ResultKind::Retrying, Next::Retry(due));
        result.lane = result.lane.retries();
        store.finish(&[result]).await.expect("finishes");
        assert_eq!(store.next_due().await.expect("looks"), Some(due));
        assert!(store.move_due(NOW, 10).await.expect("moves").is_empty());
        let moved = store.move_due(due, 10).await.expect("moves");
        assert_eq!(moved.len(), 1);
        assert!(moved[0].lane.retry && crate::notification::order_time(moved[0].order) == due);
        assert_eq!(store.next_due().await.expect("looks"), None);
        let claim = Claim {
            lane: moved[0].lane,
            after: 0,
            limit: 9,
            worker: ME,
            dead: &[],
            now: due,
        };
        let again = store.claim(&claim).await.expect("claims");
        assert_eq!(
            (again[0].attempt, again[0].fence, again[0].lost),
            (2, 2, false)
        );
    }
}

#[tokio::test]
async fn scheduled_ones_are_moved_in_order_of_due_time() {
    for (store, _database) in both().await {
        let mut batch = orders(0, 40);
        for (n, row) in batch.iter_mut().enumerate() {
            row.send_at = Some(NOW.plus(std::time::Duration::from_secs(100 - (n as u64 % 4))));
        }
        store.accept(&batch).await.expect("accepted");
        assert!(claim(&store, 0, 100, ME, &[]).await.is_empty());
        let mut moved = Vec::new();
        let later = NOW.plus(std::time::Duration::from_secs(200));
        loop {
            let some = store.move_due(later, 7).await.expect("moves");
            if some.is_empty() {
                break;
            }
            moved.extend(some);
        }
        assert_eq!(moved.len(), 40);
        let claimed = claim(&store, 0, 100, ME, &[]).await;
        let due: Vec<_> = claimed
            .iter()
            .map(|row| batch.iter().find(|b| b.id == row.id).expect("ours").send_at)
            .collect();
        assert!(due.is_sorted() && due.len() == 40, "{due:?}");
    }
}

#[tokio::test]
async fn what_waits_can_be_cancelled_and_what_was_begun_cannot() {
    for (store, _database) in both().await {
        let mut batch = orders(0, 3);
        batch[2].send_at = Some(NOW.plus(std::time::Duration::from_secs(5)));
        store.accept(&batch).await.expect("accepted");
        let begun = claim(&store, 0, 1, ME, &[]).await;
        assert_eq!(
            store.cancel(begun[0].id, NOW).await.expect("answers"),
            CancelResult::TooLate
        );
        for row in &batch[1..] {
            assert_eq!(
                store.cancel(row.id, NOW).await.expect("answers"),
                CancelResult::Now
            );
            assert_eq!(
                store.cancel(row.id, NOW).await.expect("answers"),
                CancelResult::TooLate
            );
        }
        assert!(claim(&store, 0, 9, ME, &[]).await.is_empty());
        assert_eq!(store.next_due().await.expect("looks"), None);
    }
}

#[tokio::test]
async fn what_is_handed_back_keeps_its_place_and_counts_no_attempt() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 2)).await.expect("accepted");
        let claimed = claim(&store, 0, 2, ME, &[]).await;
        let claim_of = |row: &Claimed| ClaimRef {
            id: row.id,
            fence: row.fence,
        };
        let stale = ClaimRef {
            fence: claimed[1].fence - 1,
            ..claim_of(&claimed[1])
        };
        let released = store
            .release(&[claim_of(&claimed[0]), stale])
            .await
            .expect("releases");
        let place = LanePosition {
            lane: lane(Priority::Normal),
            order: claimed[0].order,
        };
        assert_eq!(released, [place]);
        let twice = store
            .release(&[claim_of(&claimed[0])])
            .await
            .expect("answers");
        assert_eq!(twice, [], "twice is once");
        let again = claim(&store, 0, 2, OTHER, &[]).await;
        assert_eq!(
            (
                again.len(),
                again[0].order,
                again[0].attempt,
                again[0].fence
            ),
            (1, claimed[0].order, 1, 2)
        );
    }
}

#[tokio::test]
async fn a_survey_finds_what_lies_below_the_cursor() {
    for (store, _database) in both().await {
        let batch = orders(0, 10);
        store.accept(&batch[2..]).await.expect("accepted");
        let claimed = claim(&store, 0, 5, ME, &[]).await;
        let cursor = claimed[4].order;
        let mark = LowWatermark {
            lane: lane(Priority::Normal),
            low: 0,
            cursor,
        };
        let look = async |dead: &[i64]| store.scan_lanes(&[mark], dead).await.expect("looks")[0];
        let scan_lanes = look(&[]).await;
        assert_eq!(
            (scan_lanes.head, scan_lanes.gap, scan_lanes.lowest),
            (Some(batch[7].order), None, Some(batch[2].order))
        );
        assert_eq!(look(&[ME]).await.gap, Some(batch[2].order));
        store.accept(&batch[..2]).await.expect("committed late");
        assert_eq!(look(&[]).await.gap, Some(batch[0].order));
    }
}

#[tokio::test]
async fn where_a_lane_begins_is_kept_for_the_next_start() {
    for (store, _database) in both().await {
        let marks = |low| {
            Lane::of(Channel::Sms).map(|lane| LowWatermark {
                lane,
                low,
                cursor: 9,
            })
        };
        for low in [5, 7, 6] {
            store.save_low_watermarks(&marks(low)).await.expect("kept");
        }
        let mut kept = store.low_watermarks(Channel::Sms).await.expect("read");
        kept.sort_by_key(|place| place.lane.index());
        assert_eq!(
            kept,
            Lane::of(Channel::Sms).map(|lane| LanePosition { lane, order: 6 })
        );
        assert!(
            store
                .low_watermarks(Channel::Push)
                .await
                .expect("read")
                .is_empty()
        );
    }
}

#[tokio::test]
async fn workers_renew_until_they_are_dead() {
    for (store, _database) in both().await {
        let later = |s| NOW.plus(std::time::Duration::from_secs(s));
        store.register_worker(ME, NOW).await.expect("registers");
        assert!(
            store
                .renew_worker(ME, later(3), later(0))
                .await
                .expect("renews")
        );
        assert!(
            store
                .dead_workers(later(3))
                .await
                .expect("looks")
                .is_empty()
        );
        assert_eq!(store.dead_workers(later(4)).await.expect("looks"), [ME]);
        assert!(
            !store
                .renew_worker(ME, later(20), later(10))
                .await
                .expect("answers"),
            "dead is dead"
        );
        let mut batch = orders(0, 1);
        batch[0].worker = Some(ME);
        store.accept(&batch).await.expect("accepted");
        assert_eq!(
            store.delete_dead_workers(later(4)).await.expect("forgets"),
            0,
            "it holds a row"
        );
        let rescued = claim(&store, 0, 1, OTHER, &[ME]).await;
        assert_eq!(rescued.len(), 1);
        assert_eq!(
            store.delete_dead_workers(later(4)).await.expect("forgets"),
            1
        );
    }
}

#[tokio::test]
async fn dead_letters_are_kept_replayed_and_dropped() {
    for (store, _database) in both().await {
        store.accept(&orders(0, 3)).await.expect("accepted");
        let claimed = claim(&store, 0, 3, ME, &[]).await;
        let results: Vec<_> = claimed
            .iter()
            .map(|row| ended(row, ME, ResultKind::Failed, Next::Dead))
            .collect();
        store.finish(&results).await.expect("finishes");
        let all = DeadFilter {
            limit: 100,
            ..DeadFilter::default()
        };
        let letters = store.dead_letters(&all).await.expect("lists");
        assert_eq!(
            (letters.len(), letters[0].code.as_deref()),
            (3, Some("why"))
        );
        let none = DeadFilter {
            code: Some("other".to_owned()),
            ..all.clone()
        };
        assert!(store.dead_letters(&none).await.expect("lists").is_empty());
        let one = DeadFilter {
            id: Some(claimed[0].id),
            ..all.clone()
        };
        let first = order_at(NOW) + 1000;
        assert_eq!(store.replay(&one, first, NOW).await.expect("replays"), 1);
        let again = claim(&store, 0, 9, ME, &[]).await;
        assert_eq!(
            (again.len(), again[0].attempt, again[0].order),
            (1, 2, first)
        );
        assert_eq!(store.discard_dead_letters(&all).await.expect("drops"), 2);
        assert!(store.dead_letters(&all).await.expect("lists").is_empty());
    }
}

#[tokio::test]
async fn receipts_count_once_and_may_come_early() {
    for (store, _database) in both().await {
        let row = notification(order_at(NOW), Priority::Normal);
        let receipt = |event: &str, kind| Receipt {
            provider: "standard".to_owned(),
            event_id: event.to_owned(),
            id: row.id,
            kind,
            at: NOW,
            received_at: NOW,
            code: None,
            detail: Some("ok".to_owned()),
        };
        let both = [
            receipt("1", ReceiptKind::Delivered),
            receipt("2", ReceiptKind::Sent),
        ];
        assert_eq!(store.save_receipts(&both).await.expect("keeps"), 2);
        assert_eq!(store.save_receipts(&both).await.expect("keeps"), 0);
        assert!(store.read(&[row.id]).await.expect("reads").is_empty());
        store
            .accept(std::slice::from_ref(&row))
            .await
            .expect("accepted");
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
async fn what_is_due_at_one_instant_keeps_its_order_over_several_moves() {
    for (store, _database) in both().await {
        let due = NOW.plus(std::time::Duration::from_secs(60));
        let delayed = |row| NewNotification {
            send_at: Some(due),
            ..row
        };
        let mut rows: Vec<_> = orders(0, 60).into_iter().map(delayed).collect();
        let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        rows.reverse();
        store.accept(&rows).await.expect("accepts");
        let mut places = Vec::new();
        for _ in 0..3 {
            places.extend(store.move_due(due, 20).await.expect("moves"));
        }
        places.sort_unstable_by_key(|place| place.order);
        places.dedup();
        assert_eq!(places.len(), 60, "a place each");
        let claimed = claim(&store, 0, 100, ME, &[]).await;
        assert_eq!(claimed.iter().map(|row| row.id).collect::<Vec<_>>(), ids);
    }
}
