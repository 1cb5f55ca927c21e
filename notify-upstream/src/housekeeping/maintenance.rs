//! Store health, retention and metrics of the queue.

use std::sync::Arc;
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::dependency::Dependency;
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

use crate::delivery::suppression::SuppressionCache;
use crate::dispatch::DispatchState;
use crate::intake::group_commit::IDEMPOTENCY_KEY_TTL;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, Lane, order_time};
use crate::receipts::webhook::WEBHOOK_TOKEN_TTL;
use crate::shard::ShardAge;
use crate::store::{MIGRATIONS, Store, StoreError};

/// Checks the store and enforces retention.
#[derive(Debug)]
pub(crate) struct StoreMaintenance {
    /// The store.
    pub(crate) store: Store,
    /// The clock.
    pub(crate) clock: Clock,
    /// The registry of worker leases.
    pub(crate) workers: Arc<WorkerRegistry>,
    /// The suppression lists, if they are in this store.
    pub(crate) suppression: Option<Arc<SuppressionCache>>,
    /// The state in which other replicas announce changes.
    pub(crate) dispatch_state: Arc<DispatchState>,
    /// The metrics.
    pub(crate) metrics: NotifyMetrics,
    /// The availability of the database, which decides about readiness.
    pub(crate) database: Arc<Dependency>,
    /// The database, for the readiness check.
    pub(crate) opened: Database,
    /// The retention time of records.
    pub(crate) retention: Duration,
    /// When the store has accepted notifications, if it is one of several.
    pub(crate) age: Option<Arc<ShardAge>>,
    /// Whether this process has dispatchers for the store.
    pub(crate) is_worked_on: bool,
}

/// Maximum difference between the clocks of replicas that the lookup of keys allows for.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);
/// The time before the lifetime of a key in which a shard must have accepted notifications, so that
/// keys are not looked up in the next one. Every shard in use accepts some within a day.
const PRECEDING_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of rows counted per lane, which bounds the cost of counting.
const MAX_COUNTED_DEPTH: i64 = 100_000;

// === impl StoreMaintenance ===

impl StoreMaintenance {
    /// Runs until shutdown. Readiness is checked concurrently with maintenance, so that a long
    /// maintenance round does not delay it.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        tokio::join!(
            self.run_health_checks(&shutdown),
            self.run_maintenance(&shutdown)
        );
    }

    async fn run_health_checks(&self, shutdown: &CancellationToken) {
        let mut tick = round_interval();
        while next_round_starts(&mut tick, shutdown).await {
            self.check_health().await;
        }
    }

    async fn run_maintenance(&self, shutdown: &CancellationToken) {
        let mut tick = round_interval();
        for round in 0_u64.. {
            if !next_round_starts(&mut tick, shutdown).await {
                return;
            }
            if let Err(error) = self.step(round).await {
                tracing::warn!(%error, "store maintenance failed");
            }
        }
    }

    /// Checks whether the store accepts writes and has a supported schema version. Otherwise
    /// nothing is claimed.
    pub(crate) async fn check_health(&self) {
        self.metrics
            .pool_usage(self.store.queue_usage(), self.opened.usage());
        match self.opened.verify_writable(&MIGRATIONS).await {
            Ok(()) => {
                self.database.record_success();
                self.workers.set_schema_supported(true);
            }
            Err(exit) => {
                self.database.record_failure(exit.message());
                self.workers.set_schema_supported(exit.is_temporary());
            }
        }
    }

    /// Returns whether changes of the suppression lists have to be read: some were announced, an
    /// announcement may have been missed, or this is a 15th round (every 30 s).
    fn is_suppression_sync_due(&self, round: u64) -> bool {
        let replica = self.dispatch_state.replica();
        replica.take_suppression_changed()
            || replica.listening_since().is_none()
            || round.is_multiple_of(15)
    }

    /// Reads when the store has accepted notifications, if it is one of several.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn read_age(&self) -> Result<(), StoreError> {
        if let Some(age) = &self.age {
            let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let end = self.clock.now().0 - ms(IDEMPOTENCY_KEY_TTL + CLOCK_TOLERANCE);
            let period = Timestamp(end - ms(PRECEDING_PERIOD))..Timestamp(end);
            age.set(self.store.acceptance_age(period).await?);
        }
        Ok(())
    }

    /// Records the age of the oldest rows, which dispatchers do otherwise: without it nothing would
    /// show that no process delivers for the store.
    async fn record_oldest(&self, now: Timestamp) -> Result<(), StoreError> {
        let oldest = self.store.oldest_orders().await?;
        for lane in Channel::ALL.into_iter().flat_map(Lane::of) {
            let order = oldest.get(lane.channel)[lane.index()];
            let age = order.map(|order| now.since(order_time(order)));
            self.metrics.oldest(lane, age.unwrap_or_default());
        }
        Ok(())
    }

    /// Runs one maintenance round: additions to the suppression lists are written each time, and
    /// changes are read if some were announced, and every 15th round. Queue depths are counted every
    /// 5th round, expired keys deleted every 30th, retention is enforced every 1000th and in the first.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn step(&self, round: u64) -> Result<(), StoreError> {
        if let Some(suppression) = &self.suppression {
            if self.is_suppression_sync_due(round) {
                suppression.sync().await?;
            } else {
                suppression.flush().await?;
            }
            self.metrics
                .suppressions(suppression.take_added(), suppression.cached());
        }
        let now = self.clock.now();
        let before =
            |life: Duration| Timestamp(now.0 - i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
        if round.is_multiple_of(5) {
            for depth in self.store.queue_depths(MAX_COUNTED_DEPTH).await? {
                self.metrics.depth(depth.lane, depth.rows);
            }
            if !self.is_worked_on {
                self.record_oldest(now).await?;
            }
        }
        if round.is_multiple_of(30) {
            self.read_age().await?;
            self.store
                .delete_idempotency_keys(before(IDEMPOTENCY_KEY_TTL))
                .await?;
            self.store
                .delete_webhook_tokens(before(WEBHOOK_TOKEN_TTL))
                .await?;
        }
        if round.is_multiple_of(1000) {
            self.store.maintain(now, before(self.retention)).await?;
            self.metrics.retained_since(before(self.retention));
            self.workers.delete_dead_workers().await?;
        }
        Ok(())
    }
}

fn round_interval() -> Interval {
    let mut tick = tokio::time::interval(Duration::from_secs(2));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick
}

/// Waits for the next round. Returns `false` at shutdown.
async fn next_round_starts(tick: &mut Interval, shutdown: &CancellationToken) -> bool {
    tokio::select! {
        () = shutdown.cancelled() => false,
        _ = tick.tick() => true,
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::testing::TestDatabase;

    use super::*;
    use crate::notification::Priority;
    use crate::testing::{START, TestReplica, stores};

    /// Returns the maintenance of a store that no process delivers for.
    fn maintenance(replica: &TestReplica, test: &TestDatabase) -> StoreMaintenance {
        let metrics = replica.metrics.of_shard(1);
        StoreMaintenance {
            store: replica.store.clone(),
            clock: replica.clock.clone(),
            workers: Arc::clone(&replica.workers),
            suppression: None,
            dispatch_state: Arc::clone(&replica.dispatch_state),
            database: Arc::new(metrics.dependencies().optional("database-1", "test")),
            metrics,
            opened: test.database.clone(),
            retention: Duration::from_secs(90 * 86_400),
            age: Some(Arc::default()),
            is_worked_on: false,
        }
    }

    #[tokio::test]
    async fn oldest_row_is_exported_although_no_process_delivers() {
        for (store, test) in stores().await {
            let clock = Clock::manual(START);
            let mut replica = TestReplica::new(&store, &clock, 8).await;
            let maintenance = maintenance(&replica, &test);
            replica.accept(Priority::Normal).await;
            clock.advance(Duration::from_secs(100));
            maintenance.step(5).await.expect("the store is available");
            let mut exported = replica.metrics.registry().gather();
            exported.retain(|family| family.name() == "postern_notify_oldest_waiting_seconds");
            let waiting = exported[0].get_metric().iter();
            let ages: Vec<f64> = waiting
                .map(|metric| metric.get_gauge().get_value())
                .filter(|age| *age > 0.0)
                .collect();
            assert_eq!((exported[0].get_metric().len(), ages), (24, vec![100.0]));
        }
    }

    #[tokio::test]
    async fn age_of_a_shard_follows_from_its_records() {
        const HOUR: Duration = Duration::from_secs(3600);
        for (store, test) in stores().await {
            let clock = Clock::manual(START);
            let mut replica = TestReplica::new(&store, &clock, 8).await;
            let maintenance = maintenance(&replica, &test);
            let age = async || {
                maintenance.read_age().await.expect("the store answers");
                let age = maintenance.age.as_ref().expect("one of several");
                (age.may_have_keys(), age.was_accepting())
            };
            assert_eq!(age().await, (true, false), "an empty shard is being added");
            replica.accept(Priority::Normal).await;
            assert_eq!(age().await, (true, false));
            clock.advance(25 * HOUR);
            assert_eq!(age().await, (true, false));
            clock.advance(HOUR);
            assert_eq!(age().await, (false, true));
            clock.advance(23 * HOUR);
            assert_eq!(age().await, (false, true));
            clock.advance(HOUR);
            assert_eq!(age().await, (false, false), "accepted no more for days");
        }
    }
}
