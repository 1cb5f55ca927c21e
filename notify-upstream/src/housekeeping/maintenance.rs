//! Store health, retention and metrics of the queue.

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::dependency::Dependency;
use postern_store::database::{Database, StatementHealth};
use tokio_util::sync::CancellationToken;

use super::interval;
use crate::delivery::suppression::Suppression;
use crate::intake::group_commit::IDEMPOTENCY_KEY_TTL;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::receipts::webhook::WEBHOOK_TOKEN_TTL;
use crate::store::{MIGRATIONS, Store, StoreError};

/// Checks the store and enforces retention.
pub(crate) struct StoreMaintenance {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) workers: Arc<WorkerRegistry>,
    pub(crate) suppression: Arc<Suppression>,
    pub(crate) metrics: NotifyMetrics,
    /// The availability of the database, which decides about readiness.
    pub(crate) database: Dependency,
    /// The database, for the readiness check.
    pub(crate) opened: Database,
    /// Whether the statements on single tables succeed.
    pub(crate) statements: StatementHealth,
    pub(crate) retention: Duration,
}

/// Maximum number of rows counted per lane, which bounds the cost of counting.
const MAX_COUNTED_DEPTH: i64 = 100_000;
/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(2);
/// Rounds between two enforcements of retention.
const ROUNDS_PER_RETENTION: u64 = 990;

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
        let mut tick = interval(ROUND);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            self.check_health().await;
        }
    }

    async fn run_maintenance(&self, shutdown: &CancellationToken) {
        let (mut tick, mut rounds) = (interval(ROUND), 0_u64..);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some()
            && let Some(round) = rounds.next()
        {
            if let Err(error) = self.step(round).await {
                postern_core::log_outage!("database", %error, "store maintenance failed");
            }
        }
    }

    /// Checks whether the store accepts writes and has a supported schema version. Otherwise
    /// nothing is claimed.
    pub(crate) async fn check_health(&self) {
        let (queue, main) = (self.store.queue_usage(), self.opened.usage());
        self.metrics.pool_usage(queue, main);
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
        self.statements.check().await;
    }

    /// Runs one maintenance round: queue depths are counted every 5th round, expired keys deleted
    /// every 30th, retention is enforced every 990th and in the first. Deferred suppressions are
    /// stored last.
    pub(crate) async fn step(&self, round: u64) -> Result<(), StoreError> {
        if round.is_multiple_of(5) {
            for (lane, rows) in self.store.queue_depths(MAX_COUNTED_DEPTH).await? {
                self.metrics.depth(lane, rows);
            }
        }
        if round.is_multiple_of(30) {
            self.workers.register_holders().await?;
            self.store.synchronize(&self.clock).await?;
            let skew_s = self.clock.skew_ms().abs() / 1000;
            self.metrics.events.clock_skew.set(skew_s);
            if self.clock.is_confirmed() {
                self.delete_expired(round).await?;
            }
        }
        self.suppression.add_deferred().await
    }

    async fn delete_expired(&self, round: u64) -> Result<(), StoreError> {
        let now = self.clock.now();
        let millis = |life: Duration| i64::try_from(life.as_millis()).unwrap_or(i64::MAX);
        let before = |life| Timestamp(now.0 - millis(life));
        let (keys, tokens) = (before(IDEMPOTENCY_KEY_TTL), before(WEBHOOK_TOKEN_TTL));
        self.store.delete_idempotency_keys(keys).await?;
        self.store.delete_webhook_tokens(tokens).await?;
        if round.is_multiple_of(ROUNDS_PER_RETENTION) {
            let retained_since = before(self.retention);
            self.store.delete_before(retained_since).await?;
            let metric = &self.metrics.events.retained_since;
            metric.set(retained_since.unix_seconds());
            self.workers.delete_dead_workers().await?;
        }
        Ok(())
    }
}
