//! Background tasks: due notifications, retention, template reload and store health.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_common::Clock;
use postern_common::admin::Check;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use tokio::time::Interval;

use crate::delivery::suppression::SuppressionCache;
use crate::dispatch::DispatchState;
use crate::intake::group_commit::IDEMPOTENCY_KEY_TTL;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::receipts::webhook::WEBHOOK_TOKEN_TTL;
use crate::store::{MIGRATIONS, Store, StoreError};
use crate::templates::{Locale, Templates, fingerprint};

/// Moves delayed rows to the queue when they are due.
#[derive(Debug)]
pub(crate) struct DelayedRowMover {
    /// The store.
    pub(crate) store: Store,
    /// The clock.
    pub(crate) clock: Clock,
    /// The state in which moved rows are recorded.
    pub(crate) dispatch_state: Arc<DispatchState>,
}

/// Checks the store and enforces retention.
#[derive(Debug)]
pub(crate) struct StoreMaintenance {
    /// The store.
    pub(crate) store: Store,
    /// The clock.
    pub(crate) clock: Clock,
    /// The registry of worker leases.
    pub(crate) workers: Arc<WorkerRegistry>,
    /// The suppression lists.
    pub(crate) suppression: Arc<SuppressionCache>,
    /// The metrics.
    pub(crate) metrics: NotifyMetrics,
    /// The readiness check of the database.
    pub(crate) database: Check,
    /// The database, for the readiness check.
    pub(crate) opened: Database,
    /// The retention time of records.
    pub(crate) retention: Duration,
}

/// Maximum rows of one move.
const MOVE_BATCH_SIZE: i64 = 500;
/// Maximum number of rows counted per lane, which bounds the cost of counting.
const MAX_COUNTED_DEPTH: i64 = 100_000;

/// Reloads changed templates.
#[derive(Debug)]
pub(crate) struct TemplateReloader {
    /// The template folder.
    pub(crate) folder: PathBuf,
    /// The locale of notifications without one.
    pub(crate) default_locale: Locale,
    /// The current templates.
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// The fingerprint of the folder at the last check.
    pub(crate) seen: u64,
}

// === impl TemplateReloader ===

impl TemplateReloader {
    /// Reloads the templates if the folder has changed, and returns whether they were replaced. A
    /// set with an error is rejected as a whole.
    pub(crate) fn step(&mut self) -> bool {
        let now = fingerprint(&self.folder);
        if now == self.seen {
            return false;
        }
        self.seen = now;
        match Templates::load(&self.folder, self.default_locale.clone()) {
            Ok(templates) => {
                tracing::info!(templates = templates.len(), "templates reloaded");
                self.templates.store(Arc::new(templates));
                true
            }
            Err(mistakes) => {
                tracing::error!(errors = %mistakes, "template reload rejected");
                false
            }
        }
    }

    /// Checks every two seconds until shutdown.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            self = match tokio::task::spawn_blocking(move || {
                self.step();
                self
            })
            .await
            {
                Ok(reloader) => reloader,
                Err(_) => return,
            };
        }
    }
}

// === impl DelayedRowMover ===

impl DelayedRowMover {
    /// Moves all due rows and returns their number.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn step(&self) -> Result<usize, StoreError> {
        let mut total = 0;
        loop {
            let moved = self
                .store
                .move_due(self.clock.now(), MOVE_BATCH_SIZE)
                .await?;
            for place in &moved {
                self.dispatch_state.note_moved(place.lane, place.order);
            }
            total += moved.len();
            if moved.len() < usize::try_from(MOVE_BATCH_SIZE).unwrap_or(usize::MAX) {
                return Ok(total);
            }
        }
    }

    /// Moves due rows until shutdown.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            if let Err(error) = self.step().await {
                tracing::warn!(%error, "due notifications not moved");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

// === impl StoreMaintenance ===

impl StoreMaintenance {
    /// Runs until shutdown. Readiness is checked concurrently with maintenance, so that a long
    /// maintenance round does not delay it.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.watch(&shutdown), self.keep(&shutdown));
    }

    async fn watch(&self, shutdown: &CancellationToken) {
        let mut tick = every_round();
        while runs(&mut tick, shutdown).await {
            self.look().await;
        }
    }

    async fn keep(&self, shutdown: &CancellationToken) {
        let mut tick = every_round();
        for round in 0_u64.. {
            if !runs(&mut tick, shutdown).await {
                return;
            }
            if let Err(error) = self.step(round).await {
                tracing::warn!(%error, "store maintenance failed");
            }
        }
    }

    /// Checks whether the store accepts writes and has a supported schema version. Otherwise
    /// nothing is claimed.
    pub(crate) async fn look(&self) {
        match self.opened.still_fits(&MIGRATIONS).await {
            Ok(()) => {
                self.database.set_ok();
                self.workers.set_schema_supported(true);
            }
            Err(exit) => {
                self.database.set_failed(exit.message());
                self.workers.set_schema_supported(exit.is_for_now());
            }
        }
    }

    /// Runs one maintenance round: the suppression lists each time, queue depths every 5th round,
    /// expired keys every 30th, retention every 1000th and in the first.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn step(&self, round: u64) -> Result<(), StoreError> {
        self.suppression.sync().await?;
        let now = self.clock.now();
        let before =
            |life: Duration| Timestamp(now.0 - i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
        if round.is_multiple_of(5) {
            for depth in self.store.queue_depths(MAX_COUNTED_DEPTH).await? {
                self.metrics.depth(depth.lane, depth.rows);
            }
        }
        if round.is_multiple_of(30) {
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
            self.workers.forget_dead_workers().await?;
        }
        Ok(())
    }
}

fn every_round() -> Interval {
    let mut tick = tokio::time::interval(Duration::from_secs(2));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick
}

/// Waits for the next round. Returns `false` at shutdown.
async fn runs(tick: &mut Interval, shutdown: &CancellationToken) -> bool {
    tokio::select! {
        () = shutdown.cancelled() => false,
        _ = tick.tick() => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::TemplateName;

    #[test]
    fn changed_templates_are_reloaded_and_invalid_sets_rejected() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, version: u32, text: &str| {
            let folder = folder.path().join(name);
            std::fs::create_dir_all(&folder).expect("folder");
            std::fs::write(folder.join("template.toml"), format!("version = {version}"))
                .expect("file");
            std::fs::write(folder.join("sms.en.txt"), text).expect("file");
        };
        write("a", 1, "one");
        let default_locale = Locale::parse("en").expect("tag");
        let templates = Templates::load(folder.path(), default_locale.clone())
            .expect("the configuration is valid");
        let templates = Arc::new(ArcSwap::from_pointee(templates));
        let seen = fingerprint(folder.path());
        let mut reloader = TemplateReloader {
            folder: folder.path().to_owned(),
            default_locale,
            templates: Arc::clone(&templates),
            seen,
        };
        let version = || {
            let name = TemplateName::parse("a").expect("name");
            templates
                .load()
                .find(&name, crate::notification::Channel::Sms, None)
                .map(|found| found.version())
        };
        assert!(!reloader.step(), "nothing has changed");
        write("a", 2, "two, longer");
        assert!(reloader.step());
        assert_eq!(version(), Ok(2));
        write("a", 3, "three, longer still");
        write("b", 1, "{{ broken");
        assert!(!reloader.step());
        assert_eq!(version(), Ok(2));
    }
}
