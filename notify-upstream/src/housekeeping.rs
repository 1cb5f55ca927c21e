//! What runs beside: moving what is due, forgetting what is old, looking whether the store is
//! there.

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
    /// The truth.
    pub(crate) store: Store,
    /// The time.
    pub(crate) clock: Clock,
    /// Who is told.
    pub(crate) dispatch_state: Arc<DispatchState>,
}

/// Looks after the store.
#[derive(Debug)]
pub(crate) struct StoreMaintenance {
    /// The truth.
    pub(crate) store: Store,
    /// The time.
    pub(crate) clock: Clock,
    /// Who died long ago is forgotten.
    pub(crate) workers: Arc<WorkerRegistry>,
    /// The list of addresses that do not exist.
    pub(crate) suppression: Arc<SuppressionCache>,
    /// What is counted.
    pub(crate) metrics: NotifyMetrics,
    /// Whether the store answers, and is one that this binary works on.
    pub(crate) database: Check,
    /// The same store, to be asked.
    pub(crate) opened: Database,
    /// How long records are kept.
    pub(crate) retention: Duration,
}

/// Most rows of one move.
const MOVE_BATCH_SIZE: i64 = 500;
/// Rows of a lane are counted to this, so that counting costs the same however many wait.
const MAX_COUNTED_DEPTH: i64 = 100_000;

/// Takes over changed templates while the service runs.
#[derive(Debug)]
pub(crate) struct TemplateReloader {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// The language when none is asked for.
    pub(crate) default_locale: Locale,
    /// The templates of the moment.
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// The folder as it was when it was last looked at.
    pub(crate) seen: u64,
}

// === impl TemplateReloader ===

impl TemplateReloader {
    /// Looks at the folder; a set with a mistake anywhere changes nothing that is live. Whether it
    /// was taken over.
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
                tracing::error!(%mistakes, "templates refused; the ones before stay");
                false
            }
        }
    }

    /// Looks every two seconds until the stop.
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
    /// Moves what is due now. How many rows.
    ///
    /// # Errors
    /// The store's.
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

    /// Moves until the stop.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            if let Err(error) = self.step().await {
                tracing::warn!(%error, "cannot move what is due");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

// === impl StoreMaintenance ===

impl StoreMaintenance {
    /// Looks after the store until the stop. What a round of housekeeping takes does not delay what
    /// readiness says.
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
                tracing::warn!(%error, "housekeeping failed");
            }
        }
    }

    /// Whether the store takes writes, and is one that this binary works on: while it is not,
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

    /// One round: the list of suppressed addresses every time, depths every fifth, old keys every
    /// thirtieth, the rest every thousandth and at the first.
    ///
    /// # Errors
    /// The store's.
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
            self.metrics.kept_from(before(self.retention));
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

/// Waits for the next round; `false` at the stop.
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
    fn changed_templates_are_taken_over_and_bad_ones_refused_as_a_whole() {
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
        let templates = Templates::load(folder.path(), default_locale.clone()).expect("sound");
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
