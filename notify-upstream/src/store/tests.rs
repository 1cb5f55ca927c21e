//! Tests of the store over both databases.

mod postgres;
mod receipts;
mod retention;
mod suppression;

use postern_core::clock::Timestamp;

use super::*;
use crate::notification::{
    Channel, Lane, NotificationId, Order, OrderSequence, Priority, order_at,
};
use crate::store::row::ReceiptKind;
use crate::testing::{START as NOW, ok, receipt, record_of, stores};

const ME: i64 = 7;
const OTHER: i64 = 8;

fn lane(priority: Priority) -> Lane {
    Lane::first(Channel::Email, priority)
}

fn notification(order: Order, priority: Priority) -> NewNotification {
    let new = record_of(order);
    NewNotification {
        record: Record {
            lane: lane(priority),
            addressee: Some("ada".to_owned()),
            variables: "{\"name\":\"Ada \\u0000 'x' \\\"y\\\" ü\"}".to_owned(),
            created_at: NOW,
            ..new.record
        },
        ..new
    }
}

fn orders(from: i64, count: i64) -> Vec<NewNotification> {
    (0..count)
        .map(|n| notification(order_at(NOW) + from + n, Priority::Normal))
        .collect()
}

const CLAIM: Claim<'static> = Claim {
    lane: Lane::first(Channel::Email, Priority::Normal),
    limit: 9,
    for_users: 0,
    full: &[],
    last_user: "",
    worker: ME,
    dead: &[],
    now: NOW,
};

async fn claim(store: &Store, limit: usize, worker: i64, dead: &[i64]) -> Vec<Claimed> {
    let claim = Claim {
        limit,
        worker,
        dead,
        ..CLAIM
    };
    ok(store.claim(&claim)).await
}

fn ended(claimed: &Claimed, worker: i64, kind: ResultKind, next: Next) -> Finished {
    Finished {
        id: claimed.id,
        fence: claimed.fence,
        worker,
        lane: claimed.record.lane,
        creator: claimed.record.creator.clone(),
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

fn ids(rows: &[Claimed]) -> Vec<NotificationId> {
    rows.iter().map(|row| row.id).collect()
}

async fn snapshot(store: &Store, id: NotificationId) -> NotificationSnapshot {
    ok(store.read(&[id])).await.pop().expect("it exists")
}

#[tokio::test]
async fn rows_are_claimed_once_in_order() {
    for (store, _database) in stores().await {
        let batch = orders(0, 50);
        assert!(ok(store.accept(&batch)).await.is_empty());
        let first = claim(&store, 20, ME, &[]).await;
        let second = claim(&store, 100, OTHER, &[]).await;
        let seen: Vec<_> = first.iter().chain(&second).map(|row| row.order).collect();
        assert_eq!(seen, batch.iter().map(|row| row.order).collect::<Vec<_>>());
        assert_eq!(first[0].record, batch[0].record);
        assert_eq!((first[0].fence, first[0].attempt), (1, 1));
        let leased = claim(&store, 100, OTHER, &[]).await;
        assert!(leased.is_empty(), "all rows are leased");
        let rescued = claim(&store, 100, OTHER, &[ME]).await;
        assert_eq!(ids(&rescued), ids(&first), "not those of a living worker");
    }
}

#[tokio::test]
async fn idempotency_key_is_unique_per_caller_under_races() {
    for (store, _database) in stores().await {
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
        assert_eq!(ok(store.accept(&batch)).await, [batch[1].id]);
        let existing = ok(store.idempotency_record("a", "k")).await;
        let existing = existing.map(|known| (known.0, known.1));
        assert_eq!(existing, Some((batch[0].id, vec![1; 32])));
        let racing = (10..30).map(|n| {
            let (store, row) = (store.clone(), keyed(n, "c", "race"));
            tokio::spawn(async move { ok(store.accept(&[row])).await.len() })
        });
        let refused = futures_util::future::join_all(racing).await.into_iter();
        let refused: usize = refused.map(|n| n.expect("no panic")).sum();
        assert_eq!(refused, 19);
        let stored = claim(&store, 100, ME, &[]).await.len();
        assert_eq!(stored, 4, "a rejected row is not stored");
        let later = NOW.plus(std::time::Duration::from_millis(1));
        assert_eq!(ok(store.delete_idempotency_keys(later)).await, 3);
        assert_eq!(ok(store.idempotency_record("a", "k")).await, None);
    }
}

#[tokio::test]
async fn result_counts_only_under_its_fence() {
    for (store, _database) in stores().await {
        ok(store.accept(&orders(0, 3))).await;
        let mine = claim(&store, 3, ME, &[]).await;
        let theirs = claim(&store, 1, OTHER, &[ME]).await;
        let taken = (theirs[0].id, theirs[0].fence, theirs[0].attempt);
        assert_eq!(taken, (mine[0].id, 2, 2));
        let lost = snapshot(&store, mine[0].id).await;
        let mut lost = lost.results();
        assert!(lost.any(|row| row.kind == ResultKind::Lost && row.attempt == 1));
        let results = mine
            .iter()
            .map(|row| ended(row, ME, ResultKind::Sent, Next::Done));
        let results: Vec<_> = results.collect();
        let stored = ok(store.finish(&results)).await;
        assert_eq!(stored, 2, "the late result is discarded");
        assert_eq!(ok(store.finish(&results)).await, 0, "idempotent");
        for (row, count) in [(&mine[0], 0), (&mine[1], 1)] {
            let found = snapshot(&store, row.id).await;
            let sent = found.results().filter(|row| row.kind == ResultKind::Sent);
            assert_eq!(sent.count(), count);
        }
        let result = ended(&theirs[0], OTHER, ResultKind::Sent, Next::Done);
        assert_eq!(ok(store.finish(&[result])).await, 1);
    }
}

#[tokio::test]
async fn scheduled_rows_are_moved_in_order_of_due_time() {
    for (store, _database) in stores().await {
        let mut batch = orders(0, 40);
        for (n, row) in batch.iter_mut().enumerate() {
            row.send_at = Some(NOW.plus(std::time::Duration::from_secs(100 - (n as u64 % 4))));
        }
        // Not in the order of their ids.
        batch.reverse();
        ok(store.accept(&batch)).await;
        assert!(claim(&store, 100, ME, &[]).await.is_empty());
        let mut moved = Vec::new();
        let later = NOW.plus(std::time::Duration::from_secs(200));
        loop {
            let some = ok(store.move_due(later, 7)).await;
            if some.is_empty() {
                break;
            }
            moved.extend(some);
        }
        assert_eq!(moved.len(), 40);
        let claimed = claim(&store, 100, ME, &[]).await;
        let mut expected: Vec<_> = batch.iter().map(|row| (row.send_at, row.id)).collect();
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids(&claimed), expected);
    }
}

#[tokio::test]
async fn waiting_row_can_be_cancelled_claimed_row_cannot() {
    for (store, _database) in stores().await {
        let mut batch = orders(0, 3);
        batch[2].send_at = Some(NOW.plus(std::time::Duration::from_secs(5)));
        ok(store.accept(&batch)).await;
        let begun = claim(&store, 1, ME, &[]).await;
        assert!(!ok(store.cancel(begun[0].id, NOW)).await);
        for row in &batch[1..] {
            assert!(ok(store.cancel(row.id, NOW)).await);
            assert!(!ok(store.cancel(row.id, NOW)).await, "only once");
        }
        assert!(claim(&store, 9, ME, &[]).await.is_empty());
        assert_eq!(ok(store.next_due()).await, None);
    }
}

#[tokio::test]
async fn released_row_keeps_its_order_and_attempt() {
    for (store, _database) in stores().await {
        ok(store.accept(&orders(0, 2))).await;
        let claimed = claim(&store, 2, ME, &[]).await;
        let (row, stale) = (&claimed[0], &claimed[1]);
        let claims = [(row.id, row.fence), (stale.id, stale.fence - 1)];
        for _ in 0..2 {
            let released = store.release(&claims).await;
            released.expect("the second time changes nothing");
        }
        let again = claim(&store, 2, OTHER, &[]).await;
        let [again] = &again[..] else {
            panic!("{again:?}")
        };
        let found = (again.order, again.attempt, again.fence);
        assert_eq!(found, (claimed[0].order, 1, 2));
    }
}

#[tokio::test]
async fn head_is_the_first_row_that_can_be_claimed() {
    for (store, _database) in stores().await {
        let lanes = Lane::of(Channel::Email);
        let full = ["user:a".to_owned()];
        let heads = async |dead: &[i64]| {
            let heads = store.lane_heads(&lanes, dead, &full).await;
            heads.expect("no error")
        };
        assert_eq!(heads(&[]).await, []);
        let batch = orders(0, 10);
        ok(store.accept(&batch)).await;
        claim(&store, 5, ME, &[]).await;
        let head = |row: &NewNotification| (lane(Priority::Normal), row.order);
        assert_eq!(heads(&[OTHER]).await, [head(&batch[5])]);
        assert_eq!(heads(&[OTHER, ME]).await, [head(&batch[0])]);
        // Of users, that of the next one who has not its share.
        claim(&store, 9, ME, &[]).await;
        let mut users = orders(10, 3);
        for (row, user) in users.iter_mut().zip(["a", "c", "b"]) {
            row.record.creator = format!("user:{user}");
        }
        ok(store.accept(&users)).await;
        assert_eq!(heads(&[]).await, [head(&users[2])]);
    }
}
