//! What replicas tell one another.

use postern_common::admin::Health;
use postern_common::database::{Migrations, testing};

use super::*;
use crate::housekeeping::Housekeeper;
use crate::testing::execute;

#[tokio::test]
async fn another_replica_hears_of_what_was_left_waiting_and_claims_it_without_looking() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.keep_house(START, Timestamp(0)).await.expect("partitions");
    let clock = clock();
    let (mut full, mut idle) = (Rig::new(&store, &clock, 1).await, Rig::new(&store, &clock, 8).await);
    idle.step().await;
    let voice = Voice::new(store.clone(), Arc::clone(&full.board)).expect("shared");
    let mut ear = Voice::new(store.clone(), Arc::clone(&idle.board))
        .expect("shared")
        .ear()
        .await
        .expect("listens")
        .expect("shared");
    let mut own_ear = voice.ear().await.expect("listens").expect("shared");
    let _held = full.script.hold();
    full.step().await;
    full.accept(Priority::High).await;
    let left = [full.accept(Priority::High).await, full.accept(Priority::Normal).await];
    // Nothing is known here yet: the lanes were seen to their end.
    assert_eq!(idle.dispatcher.pass().await.expect("claims"), 0);
    voice.step().await.expect("tells");
    ear.step().await.expect("hears");
    assert_eq!(idle.dispatcher.pass().await.expect("claims"), 2);
    idle.settle().await;
    assert_eq!(idle.script.calls(), left);
    let before = full.board.desk(Channel::Email).signals(Lane::first(Channel::Email, Priority::High));
    own_ear.step().await.expect("hears");
    let after = full.board.desk(Channel::Email).signals(Lane::first(Channel::Email, Priority::High));
    assert_eq!(before, after, "nobody is woken by its own voice");
}

#[tokio::test]
async fn another_replica_hears_of_what_was_moved_below_what_it_has_claimed() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.keep_house(START, Timestamp(0)).await.expect("partitions");
    let clock = clock();
    let (mut mover, mut other) = (Rig::new(&store, &clock, 1).await, Rig::new(&store, &clock, 8).await);
    let voice = Voice::new(store.clone(), Arc::clone(&mover.board)).expect("shared");
    let others_voice = Voice::new(store.clone(), Arc::clone(&other.board)).expect("shared");
    let mut ear = others_voice.ear().await.expect("listens").expect("shared");
    let mut later = draft(Priority::Normal);
    later.request.send_at = Some(after(1));
    mover.submit(later, None).await.expect("accepted");
    clock.advance(Duration::from_secs(5));
    mover.accept(Priority::Normal).await;
    assert_eq!(other.step().await, 1, "what came after it was due has been claimed");
    mover.mover.step().await.expect("moves");
    assert_eq!(other.dispatcher.pass().await.expect("claims"), 0);
    voice.step().await.expect("tells");
    ear.step().await.expect("hears");
    assert_eq!(other.dispatcher.pass().await.expect("claims"), 1);
    other.settle().await;
}

#[tokio::test]
async fn the_last_word_says_what_was_handed_back() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.keep_house(START, Timestamp(0)).await.expect("partitions");
    let clock = clock();
    let (mut leaving, mut other) = (Rig::new(&store, &clock, 1).await, Rig::new(&store, &clock, 8).await);
    let voice = Voice::new(store.clone(), Arc::clone(&leaving.board)).expect("shared");
    let others_voice = Voice::new(store.clone(), Arc::clone(&other.board)).expect("shared");
    let mut ear = others_voice.ear().await.expect("listens").expect("shared");
    let id = leaving.accept(Priority::Normal).await;
    voice.step().await.expect("tells what has come");
    ear.step().await.expect("hears");
    leaving.dispatcher.survey().await.expect("looks");
    assert_eq!(leaving.dispatcher.pass().await.expect("claims"), 1);
    leaving.stop.begin();
    assert_eq!(other.step().await, 0, "it is in hand");
    leaving.settle().await;
    assert_eq!(other.dispatcher.pass().await.expect("claims"), 0, "nobody has told");
    voice.last_word().await.expect("tells");
    ear.step().await.expect("hears");
    assert_eq!(other.dispatcher.pass().await.expect("claims"), 1);
    other.settle().await;
    assert_eq!(other.script.calls(), [id]);
}

#[tokio::test]
async fn a_store_of_one_process_has_nobody_to_tell() {
    let test = testing::sqlite().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    let rig = Rig::new(&store, &clock(), 1).await;
    assert!(Voice::new(store, rig.board).is_none());
}

#[tokio::test]
async fn hosts_whose_clocks_differ_take_nobody_for_dead_that_lives() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.keep_house(START, Timestamp(0)).await.expect("partitions");
    let (slow, fast) = (clock(), Clock::manual(after(3600)));
    let start = |clock: &Clock| Workers::start(store.clone(), clock.clone(), LeaseTime::Store);
    let (behind, ahead) = (start(&slow).await.expect("registers"), start(&fast).await.expect("registers"));
    for workers in [&behind, &ahead, &behind] {
        workers.step().await.expect("renews");
        assert!(workers.dead().is_empty());
        assert!(workers.is_alive());
    }
    let (dead, holder) = (behind.current().id(), behind.current());
    execute(&test.database, &format!("UPDATE notify_worker SET seen_at = seen_at - 11000 WHERE id = {dead}"))
        .await;
    ahead.step().await.expect("renews");
    assert_eq!(*ahead.dead(), [dead], "ten seconds of the store's time");
    behind.step().await.expect("renews");
    assert!(!behind.holds(&holder), "and it hears of it");
}

/// What the release after the next takes away.
const CONTRACTED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(1000, "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost BIGINT")],
    sqlite: &[(1000, "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost INTEGER")],
};

#[tokio::test]
async fn nothing_is_begun_on_tables_that_are_for_a_newer_release() {
    for (store, test) in stores().await {
        let clock = clock();
        let mut rig = Rig::new(&store, &clock, 8).await;
        let health = Health::new();
        let keeper = Housekeeper {
            store: store.clone(),
            clock: clock.clone(),
            workers: Arc::clone(&rig.workers),
            suppression: Arc::clone(&rig.suppression),
            metrics: Metrics::new(),
            database: health.check("database"),
            opened: test.database.clone(),
            retention: Duration::from_secs(90 * 86_400),
        };
        keeper.look().await;
        let before = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.script.calls(), [before]);
        test.database.migrate(&CONTRACTED).await.expect("the release after the next");
        keeper.look().await;
        assert!(!health.is_ready());
        let after = rig.accept(Priority::Critical).await;
        rig.workers.step().await.expect("renews");
        rig.step().await;
        assert_eq!(rig.script.calls(), [before], "neither claimed nor born leased");
        assert_eq!(rig.view(after).await["status"], "QUEUED");
    }
}
