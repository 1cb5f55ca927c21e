//! What replicas tell one another.

use postern_common::admin::Health;
use postern_common::database::{Migrations, testing};

use super::*;
use crate::dispatch::wakeup::WakeupListener;
use crate::housekeeping::StoreMaintenance;
use crate::lease::LeaseClock;
use crate::testing::execute;

/// A replica with room for one call that speaks, and another with room for eight that hears it.
struct Two {
    one: TestReplica,
    other: TestReplica,
    voice: WakeupPublisher,
    ear: WakeupListener,
    clock: Clock,
    _database: testing::TestDatabase,
}

impl Two {
    async fn new() -> Self {
        let test = testing::postgres().await;
        let store = Store::open(&test.database, 4).await.expect("opens");
        store
            .maintain(START, Timestamp(0))
            .await
            .expect("partitions");
        let clock = clock();
        let (one, other) = (
            TestReplica::new(&store, &clock, 1).await,
            TestReplica::new(&store, &clock, 8).await,
        );
        let voice =
            WakeupPublisher::new(store.clone(), Arc::clone(&one.dispatch_state)).expect("shared");
        let others_voice =
            WakeupPublisher::new(store, Arc::clone(&other.dispatch_state)).expect("shared");
        let ear = others_voice
            .listener()
            .await
            .expect("listens")
            .expect("shared");
        Self {
            one,
            other,
            voice,
            ear,
            clock,
            _database: test,
        }
    }

    /// What the one has to say reaches the other.
    async fn publish(&mut self) {
        self.voice.step().await.expect("tells");
        self.ear.step().await.expect("hears");
    }

    /// What the other claims now, without looking at what it has not heard of.
    async fn claimed_by_the_other(&mut self) -> usize {
        self.other.dispatcher.pass().await.expect("claims")
    }
}

#[tokio::test]
async fn another_replica_hears_of_what_was_left_waiting_and_claims_it_without_looking() {
    let mut two = Two::new().await;
    two.other.step().await;
    let mut own_ear = two
        .voice
        .listener()
        .await
        .expect("listens")
        .expect("shared");
    let _held = two.one.script.hold();
    two.one.step().await;
    two.one.accept(Priority::High).await;
    let left = [
        two.one.accept(Priority::High).await,
        two.one.accept(Priority::Normal).await,
    ];
    assert_eq!(
        two.claimed_by_the_other().await,
        0,
        "nothing is known here: the lanes were seen to their end"
    );
    two.publish().await;
    assert_eq!(two.claimed_by_the_other().await, 2);
    two.other.settle().await;
    assert_eq!(two.other.script.calls(), left);
    let signals = || {
        two.one
            .dispatch_state
            .channel(Channel::Email)
            .signals(Lane::first(Channel::Email, Priority::High))
    };
    let before = signals();
    own_ear.step().await.expect("hears");
    assert_eq!(before, signals(), "nobody is woken by its own voice");
}

#[tokio::test]
async fn another_replica_hears_of_what_was_moved_below_what_it_has_claimed() {
    let mut two = Two::new().await;
    let mut later = draft(Priority::Normal);
    later.request.send_at = Some(after(1));
    two.one.submit(later, None).await.expect("accepted");
    two.clock.advance(Duration::from_secs(5));
    two.one.accept(Priority::Normal).await;
    assert_eq!(
        two.other.step().await,
        1,
        "what came after it was due has been claimed"
    );
    two.one.mover.step().await.expect("moves");
    assert_eq!(two.claimed_by_the_other().await, 0);
    two.publish().await;
    assert_eq!(two.claimed_by_the_other().await, 1);
    two.other.settle().await;
}

#[tokio::test]
async fn the_last_word_says_what_was_handed_back() {
    let mut two = Two::new().await;
    let id = two.one.accept(Priority::Normal).await;
    two.publish().await;
    two.one.dispatcher.scan_lanes().await.expect("looks");
    assert_eq!(two.one.dispatcher.pass().await.expect("claims"), 1);
    two.one.stop.cancel();
    assert_eq!(two.other.step().await, 0, "it is in hand");
    two.one.settle().await;
    assert_eq!(two.claimed_by_the_other().await, 0, "nobody has told");
    two.voice.flush().await.expect("tells");
    two.ear.step().await.expect("hears");
    assert_eq!(two.claimed_by_the_other().await, 1);
    two.other.settle().await;
    assert_eq!(two.other.script.calls(), [id]);
}

#[tokio::test]
async fn a_store_of_one_process_has_nobody_to_tell() {
    let test = testing::sqlite().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    let rig = TestReplica::new(&store, &clock(), 1).await;
    assert!(WakeupPublisher::new(store, rig.dispatch_state).is_none());
}

#[tokio::test]
async fn hosts_whose_clocks_differ_take_nobody_for_dead_that_lives() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store
        .maintain(START, Timestamp(0))
        .await
        .expect("partitions");
    let (slow, fast) = (clock(), Clock::manual(after(3600)));
    let start =
        |clock: &Clock| WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store);
    let (behind, ahead) = (
        start(&slow).await.expect("registers"),
        start(&fast).await.expect("registers"),
    );
    for workers in [&behind, &ahead, &behind] {
        workers.step().await.expect("renews");
        assert!(workers.dead().is_empty());
        assert!(workers.is_alive());
    }
    let (dead, holder) = (behind.current().id(), behind.current());
    execute(
        &test.database,
        &format!("UPDATE notify_worker SET seen_at = seen_at - 11000 WHERE id = {dead}"),
    )
    .await;
    ahead.step().await.expect("renews");
    assert_eq!(*ahead.dead(), [dead], "ten seconds of the store's time");
    behind.step().await.expect("renews");
    assert!(!behind.holds(&holder), "and it hears of it");
}

/// What the release after the next takes away.
const CONTRACTED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(
        1000,
        "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost BIGINT",
    )],
    sqlite: &[(
        1000,
        "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost INTEGER",
    )],
};

#[tokio::test]
async fn nothing_is_begun_on_tables_that_are_for_a_newer_release() {
    for (store, test) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let health = Health::new();
        let keeper = StoreMaintenance {
            store: store.clone(),
            clock: clock.clone(),
            workers: Arc::clone(&rig.workers),
            suppression: Arc::clone(&rig.suppression),
            metrics: NotifyMetrics::new(),
            database: health.check("database"),
            opened: test.database.clone(),
            retention: Duration::from_secs(90 * 86_400),
        };
        keeper.look().await;
        let before = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.script.calls(), [before]);
        test.database
            .migrate(&CONTRACTED)
            .await
            .expect("the release after the next");
        keeper.look().await;
        assert!(!health.is_ready());
        let after = rig.accept(Priority::Critical).await;
        rig.workers.step().await.expect("renews");
        rig.step().await;
        assert_eq!(
            rig.script.calls(),
            [before],
            "neither claimed nor born leased"
        );
        assert_eq!(rig.view(after).await["status"], "QUEUED");
    }
}
