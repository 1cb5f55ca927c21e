use std::collections::BTreeSet;

use postern_common::Clock;
use postern_common::database::testing::{TestDatabase, sqlite};
use uuid::Uuid;

use super::*;
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::testing::{START, TestReplica};

/// Shards over databases of their own.
struct TestShards {
    shards: Shards,
    others: Vec<Shard>,
    _databases: Vec<TestDatabase>,
}

// === impl TestShards ===

impl TestShards {
    /// Opens shard 0 of `count`. The others are in `others`.
    async fn new(count: ShardNumber, accept: &[ShardNumber]) -> Self {
        let (clock, metrics) = (Clock::manual(START), NotifyMetrics::new());
        let (mut all, mut databases) = (Vec::new(), Vec::new());
        for number in 0..count {
            let database = sqlite().await;
            let store = Store::open(&database.database, 4).await.expect("it opens");
            let rig = TestReplica::new(&store, &clock, 8).await;
            let (reader, _) = StatusReader::open(store.clone(), Arc::clone(&rig.snapshot_cache));
            let name = format!("database-{number}");
            all.push(Shard {
                number,
                store,
                submissions: rig.submissions,
                reader,
                snapshot_cache: rig.snapshot_cache,
                dispatch_state: rig.dispatch_state,
                availability: Arc::new(metrics.dependencies().optional(name, "test")),
                age: Arc::default(),
            });
            databases.push(database);
        }
        let others = all.split_off(1);
        let first = all.remove(0);
        let stores = Stores::new(count.into(), first.store.clone());
        Self {
            shards: Shards::new(stores, accept, first),
            others,
            _databases: databases,
        }
    }

    /// Opens all shards of `count`, of which each has accepted long ago and recently.
    async fn in_use(count: ShardNumber, accept: &[ShardNumber]) -> Self {
        let mut test = Self::new(count, accept).await;
        for shard in test.others.drain(..) {
            test.shards.insert(shard);
        }
        for number in 0..count {
            test.set_age(number, true, true);
        }
        test
    }

    fn set_age(&self, number: ShardNumber, has_recent: bool, has_preceding: bool) {
        let shard = self.shards.get(number).expect("the shard is open");
        shard.age.set(AcceptanceAge {
            has_recent,
            has_preceding,
            has_any: true,
        });
    }

    /// Returns the number of the responsible shard, and those where the key is looked up before.
    fn of_key(&self, key: &str) -> (ShardNumber, Vec<ShardNumber>) {
        let placement = self.shards.of_key("service:a", key).expect("all are open");
        let earlier = placement.earlier.iter().map(|shard| shard.number);
        (placement.shard.number, earlier.collect())
    }
}

fn keys() -> Vec<String> {
    (0..2_000).map(|n| format!("key-{n}")).collect()
}

#[test]
fn weights_are_stable_balanced_and_move_few_keys() {
    let first = |count, key: &str| ranked(count, "service:a", key)[0];
    assert_eq!(ranked(8, "service:a", "key-0"), RANKED_OF_KEY_0);
    assert_ne!(
        ranked(200, "service:a", "bc"),
        ranked(200, "service:ab", "c"),
        "creator and key are separate"
    );
    let keys = keys();
    for count in [2, 3, 5] {
        let mut counts = vec![0; count];
        for key in &keys {
            counts[usize::from(first(count, key))] += 1;
            let (now, later) = (first(count, key), first(count + 1, key));
            assert!(later == now || usize::from(later) == count, "{key} moved");
        }
        let fair = keys.len() / count;
        let is_fair = |found: &usize| found.abs_diff(fair) < fair / 5;
        assert!(counts.iter().all(is_fair), "{counts:?}");
    }
}

/// The order that notifications with keys have been stored by. It must never change.
const RANKED_OF_KEY_0: [ShardNumber; 8] = [6, 7, 4, 5, 2, 3, 0, 1];

#[tokio::test]
async fn notifications_without_key_go_to_available_shards_in_turn() {
    let test = TestShards::in_use(4, &[0, 1, 3]).await;
    let next = |count| -> Vec<ShardNumber> {
        let any = || test.shards.any().expect("a shard is open").number;
        (0..count).map(|_| any()).collect()
    };
    assert_eq!(next(6), [0, 1, 3, 0, 1, 3]);
    let availability = |number| &test.shards.get(number).expect("open").availability;
    availability(1).record_failure("down");
    assert!(!next(6).contains(&1));
    for number in [0, 3] {
        availability(number).record_failure("down");
    }
    assert_eq!(next(3), [0, 1, 3], "one that is down says so");
    let unopened = TestShards::new(2, &[1]).await;
    let refused = unopened.shards.any().expect_err("shard 1 is not open");
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn one_database_has_no_earlier_shards() {
    let test = TestShards::new(1, &[0]).await;
    assert_eq!(test.of_key("key"), (0, vec![]));
}

#[tokio::test]
async fn key_is_looked_up_where_it_was_before_a_shard_was_added() {
    let (before, after) = (
        TestShards::in_use(2, &[0, 1]).await,
        TestShards::in_use(3, &[0, 1, 2]).await,
    );
    after.set_age(2, true, false);
    let mut moved = 0;
    for key in keys() {
        let (was, earlier) = before.of_key(&key);
        assert!(earlier.is_empty());
        let (is, earlier) = after.of_key(&key);
        if is == was {
            assert!(earlier.is_empty(), "{key}");
        } else {
            moved += 1;
            assert_eq!((is, &earlier[..]), (2, &[was][..]), "{key}");
        }
    }
    assert!(moved > 500, "{moved} keys moved");
    after.set_age(2, true, true);
    assert!(keys().iter().all(|key| after.of_key(key).1.is_empty()));
}

#[tokio::test]
async fn key_is_looked_up_in_a_shard_that_accepts_no_more() {
    let (before, after) = (
        TestShards::in_use(3, &[0, 1, 2]).await,
        TestShards::in_use(3, &[0, 2]).await,
    );
    for key in keys() {
        let (was, _) = before.of_key(&key);
        let (is, earlier) = after.of_key(&key);
        assert_ne!(is, 1);
        let expected: &[ShardNumber] = if was == 1 { &[1] } else { &[] };
        assert_eq!(earlier, expected, "{key}");
    }
    for has_preceding in [true, false] {
        after.set_age(1, false, has_preceding);
        assert!(keys().iter().all(|key| after.of_key(key).1.is_empty()));
    }
}

#[tokio::test]
async fn key_is_looked_up_in_a_shard_that_is_being_added() {
    let (old, new) = (
        TestShards::in_use(2, &[0]).await,
        TestShards::in_use(2, &[0, 1]).await,
    );
    // It was empty when this replica read it. Those of the newer configuration have filled it.
    let added = old.shards.get(1).expect("open");
    added.age.set(AcceptanceAge::default());
    for key in keys() {
        let expected: &[ShardNumber] = match new.of_key(&key).0 {
            1 => &[1],
            _ => &[],
        };
        assert_eq!(old.of_key(&key), (0, expected.to_vec()), "{key}");
    }
}

#[tokio::test]
async fn key_is_looked_up_after_its_shard_accepts_again() {
    let test = TestShards::in_use(2, &[0, 1]).await;
    // It was not in `accept` for days: its records are older than those.
    test.set_age(1, false, false);
    let placed: Vec<_> = keys().iter().map(|key| test.of_key(key)).collect();
    assert!(placed.iter().any(|(shard, _)| *shard == 1));
    for (shard, earlier) in placed {
        let expected: &[ShardNumber] = if shard == 1 { &[0] } else { &[] };
        assert_eq!(earlier, expected);
    }
}

#[tokio::test]
async fn key_is_refused_while_a_shard_that_may_have_it_is_down() {
    let test = TestShards::in_use(3, &[0, 1]).await;
    // The shards of the highest rank for which keys are refused, with what the response says.
    let refused = || -> BTreeSet<(ShardNumber, String)> {
        let outcome = |key: &String| {
            let problem = test.shards.of_key("service:a", key).err()?;
            let detail = problem.to_json("")["detail"].to_string();
            Some((ranked(3, "service:a", key)[0], detail))
        };
        keys().iter().filter_map(outcome).collect()
    };
    let detail = |shard| format!("\"shard {shard} of the database is not available\"");
    assert_eq!(refused(), [].into());
    let availability = |number| &test.shards.get(number).expect("open").availability;
    availability(2).record_failure("down");
    assert_eq!(refused(), [(2, detail(2))].into());
    // Its last keys have expired.
    test.set_age(2, false, false);
    assert_eq!(refused(), [].into());
    availability(2).record_success();
    availability(1).record_failure("down");
    assert_eq!(refused(), [(1, detail(1)), (2, detail(1))].into());
}

#[tokio::test]
async fn key_is_refused_while_its_shard_is_not_open() {
    let test = TestShards::new(2, &[0, 1]).await;
    test.set_age(0, true, true);
    let outcomes: BTreeSet<_> = keys()
        .iter()
        .map(|key| {
            let placed = test.shards.of_key("service:a", key);
            placed
                .map(|it| it.shard.number)
                .map_err(|problem| problem.code())
        })
        .map(|outcome| format!("{outcome:?}"))
        .collect();
    let expected = ["Err(ShardUnavailable)", "Ok(0)"].map(str::to_owned);
    assert_eq!(outcomes, expected.into());
}

#[tokio::test]
async fn id_of_a_shard_that_is_not_open_is_unavailable() {
    let test = TestShards::new(2, &[0, 1]).await;
    let id = |shard| {
        let sequence = OrderSequence::of_shard(Clock::manual(START), shard);
        sequence.places(1).next().expect("one identifier").1
    };
    let old = NotificationId(Uuid::new_v4());
    for known in [id(0), old] {
        assert_eq!(test.shards.of(known).expect("open").number, 0);
    }
    let problem = test.shards.of(id(1)).expect_err("it is not open");
    assert_eq!(problem.code(), Code::ShardUnavailable);
    let detail = "shard 1 of the database is not available";
    assert_eq!(problem.to_json("")["detail"], detail);
    // Anybody can ask for an id with any number: that is no outage.
    let problem = test.shards.of(id(2)).expect_err("it is not configured");
    assert_eq!(problem.code(), Code::NotFound);
    for (shard, state) in [(1, "not open"), (2, "not configured")] {
        let read = test.shards.stores().read(&[id(shard)]).await;
        assert!(read.expect_err(state).is_outage());
    }
}
