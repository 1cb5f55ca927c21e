//! Tests of several stores that are asked as one.

use super::*;

/// Returns two stores over databases of their own, as shards.
async fn two() -> (Stores, [TestDatabase; 2]) {
    let databases = [testing::sqlite().await, testing::sqlite().await];
    let open = async |test: &TestDatabase| {
        Store::open(&test.database, 4)
            .await
            .expect("the store opens")
    };
    let stores = Stores::new(2, open(&databases[0]).await);
    stores.insert(1, open(&databases[1]).await);
    (stores, databases)
}

/// Stores notifications in turn in both shards, oldest first, and returns their ids.
async fn accept(stores: &Stores, count: i64) -> Vec<NotificationId> {
    let mut ids = Vec::new();
    for n in 0..count {
        let shard = ShardNumber::from(n % 2 == 1);
        let at = NOW.plus(std::time::Duration::from_millis(n.unsigned_abs()));
        let sequence = OrderSequence::of_shard(postern_common::Clock::manual(at), shard);
        let (order, id) = sequence.places(1).next().expect("one identifier");
        let row = NewNotification {
            id,
            ..notification(order, Priority::Normal)
        };
        let store = stores.of(id).expect("the store is open");
        store.accept(&[row]).await.expect("no error");
        ids.push(id);
    }
    ids
}

/// Lets all notifications fail, in the order of the ids.
async fn fail(stores: &Stores, ids: &[NotificationId]) {
    for (n, id) in ids.iter().enumerate() {
        let store = stores.of(*id).expect("the store is open");
        let rows = claim(store, 0, 1, ME, &[]).await;
        let mut failed = ended(&rows[0], ME, ResultKind::Failed, Next::Dead);
        failed.result.at = Timestamp(NOW.0 + i64::try_from(n).expect("small"));
        assert_eq!(failed.id, *id);
        store.finish(&[failed]).await.expect("no error");
    }
}

#[tokio::test]
async fn snapshots_and_lists_of_all_shards_are_merged() {
    let (stores, _databases) = two().await;
    let ids = accept(&stores, 9).await;
    let found = stores.read(&ids).await.expect("no error");
    let found: std::collections::BTreeSet<_> = found.iter().map(|it| it.id).collect();
    assert_eq!(found, ids.iter().copied().collect());
    let list = async |before: NotificationId, limit| {
        let query = ListQuery {
            scope: ListScope::All,
            from: NotificationId::floor(Timestamp(0)),
            before,
            limit,
        };
        let rows = stores.list(&query).await.expect("no error");
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let newest: Vec<_> = ids.iter().rev().copied().collect();
    let end = NotificationId(uuid::Uuid::max());
    assert_eq!(list(end, 100).await, newest);
    assert_eq!(list(end, 4).await, newest[..4]);
    assert_eq!(list(newest[3], 4).await, newest[4..8]);
}

#[tokio::test]
async fn oldest_dead_letters_of_all_shards_are_selected() {
    let (stores, _databases) = two().await;
    let ids = accept(&stores, 8).await;
    fail(&stores, &ids).await;
    let filter = |limit| DeadFilter {
        limit,
        ..DeadFilter::default()
    };
    let listed = async |filter| {
        let letters = stores.dead_letters(&filter).await.expect("no error");
        letters.iter().map(|letter| letter.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(filter(100)).await, ids);
    assert_eq!(listed(filter(3)).await, ids[..3]);
    let replayed = stores.replay(&filter(3), order_at(NOW), NOW).await;
    assert_eq!(replayed.expect("no error"), 3);
    assert_eq!(listed(filter(100)).await, ids[3..]);
    let one = DeadFilter {
        id: Some(ids[5]),
        ..filter(1)
    };
    let dropped = stores.discard_dead_letters(&one).await;
    assert_eq!(dropped.expect("no error"), 1);
    let dropped = stores.discard_dead_letters(&filter(2)).await;
    assert_eq!(dropped.expect("no error"), 2);
    assert_eq!(listed(filter(100)).await, ids[6..]);
}

fn reports_of(ids: &[NotificationId]) -> Vec<Receipt> {
    let report = |id: &NotificationId| Receipt {
        provider: "test".to_owned(),
        event_id: id.to_string(),
        id: *id,
        kind: ReceiptKind::Delivered,
        at: NOW,
        received_at: NOW,
        code: None,
        detail: None,
    };
    ids.iter().map(report).collect()
}

#[tokio::test]
async fn reports_are_stored_in_the_shards_of_their_notifications() {
    let (stores, _databases) = two().await;
    let ids = accept(&stores, 4).await;
    let reports = reports_of(&ids);
    assert_eq!(stores.save_receipts(&reports).await.expect("no error"), 4);
    assert_eq!(stores.save_receipts(&reports).await.expect("no error"), 0);
    for id in ids {
        let store = stores.of(id).expect("the store is open");
        let history = snapshot(store, id).await.history;
        let is_report = |entry: &&HistoryEntry| matches!(entry, HistoryEntry::Receipt(_));
        assert_eq!(history.iter().filter(is_report).count(), 1);
    }
}

#[tokio::test]
async fn reports_are_stored_although_another_shard_is_down() {
    let (two, _databases) = two().await;
    let numbers = [0, 1];
    let [first, last] = numbers.map(|shard| two.get(shard).expect("open").clone());
    // Shard 1 is not open, and 3 is not configured.
    let stores = Stores::new(3, first);
    stores.insert(2, last);
    let ids = [1, 2, 3, 0].map(|shard| {
        let sequence = OrderSequence::of_shard(postern_common::Clock::manual(NOW), shard);
        let (order, id) = sequence.places(1).next().expect("one identifier");
        let row = notification(order, Priority::Normal);
        NewNotification { id, ..row }
    });
    for row in &ids {
        if let Ok(store) = stores.of(row.id) {
            store
                .accept(std::slice::from_ref(row))
                .await
                .expect("no error");
        }
    }
    let ids = ids.map(|row| row.id);
    let saved = stores.save_receipts(&reports_of(&ids)).await;
    assert!(saved.expect_err("shard 1 is not open").is_outage());
    let (found, outcome) = stores.read_available(&ids).await;
    let outcome = outcome.expect_err("shard 1 is not open").to_string();
    assert!(outcome.starts_with("shard 1 is not available"), "{outcome}");
    let found: Vec<_> = found.iter().map(|it| (it.id, it.history.len())).collect();
    assert_eq!(
        found,
        [(ids[3], 2), (ids[1], 2)],
        "the waiting row and the report"
    );
}

#[tokio::test]
async fn nothing_is_listed_while_a_shard_is_not_open() {
    let test = testing::sqlite().await;
    let store = Store::open(&test.database, 4).await.expect("it opens");
    let stores = Stores::new(2, store);
    let refused = stores.dead_letters(&DeadFilter::default()).await;
    let text = refused.expect_err("shard 1 is not open").to_string();
    assert_eq!(text, "shard 1 is not available: it has not been opened yet");
    // One dead letter is looked for in its shard.
    let one = DeadFilter {
        id: Some(OrderSequence::id(0)),
        limit: 1,
        ..DeadFilter::default()
    };
    let found = stores.dead_letters(&one).await.expect("shard 0 answers");
    assert!(found.is_empty());
}

#[tokio::test]
async fn acceptance_is_within_a_period_or_after_it() {
    for (store, _database) in both().await {
        let at = |offset| Timestamp(NOW.0 + offset);
        let age = async |start, end| {
            let age = store.acceptance_age(at(start)..at(end)).await;
            let age = age.expect("no error");
            [age.has_recent, age.has_preceding, age.has_any]
        };
        assert_eq!(age(-1, 0).await, [false, false, false]);
        let rows = orders(0, 2);
        store.accept(&rows).await.expect("no error");
        assert_eq!(age(-1, 0).await, [true, false, true]);
        assert_eq!(age(0, 1).await, [false, true, true]);
        assert_eq!(age(1, 2).await, [false, false, true]);
    }
}

#[tokio::test]
async fn database_is_the_shard_that_it_was_first_used_as() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("it opens");
    let found = async || store.shard_number().await.expect("no error");
    for number in [0, 1] {
        let checked = store.check_shard(number, "db").await;
        checked.expect("an unused database is any shard");
    }
    assert_eq!(found().await, None);
    store.use_as_shard(1, "db").await.expect("it is unused");
    store.use_as_shard(1, "db").await.expect("it is the same");
    let twice = [
        store.use_as_shard(0, "db").await,
        store.check_shard(0, "db").await,
    ];
    for exit in twice.map(|outcome| outcome.expect_err("it is shard 1")) {
        assert_eq!(exit.status(), 64);
        let expected = "database.shards.0: db is shard 1: each database is in the list once";
        assert!(exit.message().starts_with(expected), "{exit}");
    }
    assert_eq!(found().await, Some(1));
}
