//! Tests of wake-ups between replicas.

use postern_store::database::{Migrations, StatementHealth, testing};

use super::*;
use crate::dispatch::wakeup::WakeupListener;
use crate::housekeeping::StoreMaintenance;
use crate::lease::LeaseClock;
use crate::notification::order_at;
use crate::store::{DeadFilter, SuppressionRow};
use crate::testing::execute;

/// A replica with one permit that publishes, and another with eight that listens.
struct ReplicaPair {
    one: TestReplica,
    other: TestReplica,
    voice: WakeupPublisher,
    ear: WakeupListener,
    database: testing::TestDatabase,
}

impl ReplicaPair {
    async fn new() -> Self {
        let test = testing::postgres().await;
        let store = Store::open(&test.database, 4)
            .await
            .expect("the store opens");
        let clock = clock();
        let (one, other) = (
            TestReplica::new(&store, &clock, 1).await,
            TestReplica::new(&store, &clock, 8).await,
        );
        let voice = WakeupPublisher::new(store.clone(), Arc::clone(&one.dispatch_state))
            .expect("the store is shared");
        let others_voice = WakeupPublisher::new(store, Arc::clone(&other.dispatch_state))
            .expect("the store is shared");
        let ear = others_voice
            .listener()
            .await
            .expect("the listener binds")
            .expect("the store is shared");
        Self {
            one,
            other,
            voice,
            ear,
            database: test,
        }
    }

    /// Publishes the wake-ups of the first replica and receives them in the second.
    async fn publish(&mut self) {
        self.voice.step().await.expect("publishing succeeds");
        self.ear.step().await.expect("a wake-up arrives");
    }

    /// Returns the number of rows that the second replica claims without a poll.
    async fn claimed_by_listener(&mut self) -> usize {
        self.other
            .dispatcher
            .claim_available()
            .await
            .expect("no error")
    }
}

#[tokio::test]
async fn wakeup_makes_another_replica_claim() {
    let mut pair = ReplicaPair::new().await;
    pair.other.step().await;
    let mut own_ear = pair
        .voice
        .listener()
        .await
        .expect("the listener binds")
        .expect("the store is shared");
    let _held = pair.one.script.hold();
    pair.one.accept(Priority::High).await;
    let left = [
        pair.one.accept(Priority::High).await,
        pair.one.accept(Priority::Normal).await,
    ];
    assert_eq!(pair.claimed_by_listener().await, 0, "all lanes are empty");
    let claimed = pair.one.dispatcher.claim_available().await;
    assert_eq!(claimed.expect("no error"), 1, "one permit");
    pair.publish().await;
    assert_eq!(pair.claimed_by_listener().await, 2);
    pair.other.settle().await;
    assert_eq!(pair.other.script.calls(), left);
    let signals = || {
        pair.one
            .dispatch_state
            .channel(Channel::Email)
            .signals(Lane::first(Channel::Email, Priority::High))
    };
    let before = signals();
    own_ear.step().await.expect("a wake-up arrives");
    assert_eq!(before, signals(), "own signals are ignored");
}

#[tokio::test]
async fn final_wakeup_reports_released_rows() {
    let mut pair = ReplicaPair::new().await;
    let id = pair.one.accept(Priority::Normal).await;
    let claimed = pair.one.dispatcher.claim_available().await;
    assert_eq!(claimed.expect("no error"), 1);
    pair.one.stop.cancel();
    assert_eq!(pair.other.step().await, 0, "the row is in delivery");
    pair.one.settle().await;
    assert_eq!(pair.claimed_by_listener().await, 0, "no wake-up was sent");
    pair.voice.flush().await.expect("publishing succeeds");
    pair.ear.step().await.expect("a wake-up arrives");
    assert_eq!(pair.claimed_by_listener().await, 1);
    pair.other.settle().await;
    assert_eq!(pair.other.script.calls(), [id]);
}

#[tokio::test]
async fn operators_changes_wake_all_replicas() {
    let mut pair = ReplicaPair::new().await;
    let row = SuppressionRow {
        kind: 0,
        address: vec![7; 32],
        category: String::new(),
        reason: "mailbox_unknown".to_owned(),
    };
    let state = Arc::clone(&pair.other.dispatch_state);
    let added = pair.one.store.suppress(&[row]).await;
    assert_eq!(added.expect("no error"), 1);
    pair.ear.step().await.expect("a signal arrives");
    assert!(state.replica().take_suppression_changed());
    assert!(!state.replica().take_suppression_changed(), "once");
    let id = pair.one.accept(Priority::Normal).await;
    execute(
        &pair.database.database,
        &format!("INSERT INTO notify_dead SELECT id, lane, 1, 1, 1, 'x' FROM notify_queue WHERE id = '{id}'"),
    )
    .await;
    execute(&pair.database.database, "DELETE FROM notify_queue").await;
    let all = DeadFilter {
        limit: 10,
        ..DeadFilter::default()
    };
    let replayed = pair.one.store.replay(&all, order_at(START), START).await;
    assert_eq!(replayed.expect("no error"), 1);
    let signals = || {
        let lanes = Channel::ALL.into_iter().flat_map(Lane::of);
        lanes.map(|lane| state.channel(lane.channel).signals(lane))
    };
    let before: Vec<_> = signals().collect();
    pair.ear.step().await.expect("a signal arrives");
    assert!(signals().zip(before).all(|(now, before)| now > before));
}

#[tokio::test]
async fn due_times_of_delayed_rows_are_known_without_a_query() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 4).await;
        let state = Arc::clone(&rig.dispatch_state);
        let is_due = |seconds| state.replica().take_due(after(seconds));
        assert!(!is_due(86_400), "nothing is delayed");
        let mut later = draft(Priority::Normal);
        later.request.send_at = Some(after(60));
        rig.submit(later, None).await.expect("accepted");
        assert!(!is_due(59));
        assert!(is_due(60), "a scheduled notification");
        rig.mover.step().await.expect("no error");
        assert!(!is_due(59));
        assert!(is_due(60), "found by the query");
        clock.advance(Duration::from_secs(60));
        assert_eq!(rig.mover.step().await.expect("no error"), 1);
        assert!(!is_due(86_400), "nothing is delayed any more");
        rig.workers.step().await.expect("a new lease");
        rig.script.refuse(&["451 4.3.0"]);
        assert_eq!(rig.step().await, 1);
        assert!(is_due(86_400), "a retry");
    }
}

#[tokio::test]
async fn single_process_store_has_no_wakeups() {
    let test = testing::sqlite().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let rig = TestReplica::new(&store, &clock(), 1).await;
    assert!(WakeupPublisher::new(store, rig.dispatch_state).is_none());
}

#[tokio::test]
async fn different_host_clocks_do_not_expire_leases() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let (slow, fast) = (clock(), Clock::manual(after(3600)));
    let start =
        |clock: &Clock| WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store);
    let (behind, ahead) = (start(&slow).await, start(&fast).await);
    for workers in [&behind, &ahead, &behind] {
        workers.step().await.expect("lease renewal succeeds");
        assert!(workers.dead().is_empty());
        assert!(workers.is_alive());
    }
    let (dead, holder) = (behind.current().id(), behind.current());
    execute(
        &test.database,
        &format!("UPDATE notify_worker SET seen_at = seen_at - 11000 WHERE id = {dead}"),
    )
    .await;
    ahead.step().await.expect("lease renewal succeeds");
    assert_eq!(
        *ahead.dead(),
        [dead],
        "lease timeout by the clock of the store"
    );
    behind.step().await.expect("lease renewal succeeds");
    assert!(!behind.may_start(&holder), "the lease is lost");
}

/// A migration that removes a column, of the release after the next.
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
async fn nothing_starts_on_an_unsupported_schema() {
    for (store, test) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let metrics = NotifyMetrics::new();
        let health = metrics.health().clone();
        let maintenance = StoreMaintenance {
            store: store.clone(),
            clock: clock.clone(),
            workers: Arc::clone(&rig.workers),
            suppression: Arc::clone(&rig.suppression),
            dispatch_state: Arc::clone(&rig.dispatch_state),
            metrics: metrics.clone(),
            database: metrics.dependencies().required("database", "test"),
            opened: test.database.clone(),
            statements: StatementHealth::new(
                &test.database,
                metrics.dependencies(),
                &metrics.registry(),
            ),
            retention: Duration::from_secs(90 * 86_400),
        };
        maintenance.check_health().await;
        let before = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.script.calls(), [before]);
        test.database
            .migrate(&CONTRACTED)
            .await
            .expect("the release after the next");
        maintenance.check_health().await;
        assert!(!health.is_ready());
        let after = rig.accept(Priority::Critical).await;
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.step().await;
        assert_eq!(rig.script.calls(), [before], "nothing is claimed");
        assert_eq!(rig.view(after).await["status"], "QUEUED");
    }
}
