//! The store and its tasks: opening, start and shutdown.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use postern_core::Clock;
use postern_core::dependency::Dependency;
use postern_core::exit::Exit;
use postern_core::trace::Tracer;
use postern_store::cache::Cache;
use postern_store::database::{Database, StatementHealth};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::shutdown::DeliveryTasks;
use crate::config::Config;
use crate::delivery::actors::ActorClient;
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::pool::ProviderPool;
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{AttemptRunner, DispatchContext, DispatchState, Dispatcher, ResultWriter};
use crate::housekeeping::{DelayedRowMover, StoreMaintenance};
use crate::intake::group_commit::{GroupCommitter, SubmissionQueue};
use crate::lease::{LeaseClock, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, OrderSequence};
use crate::store::Store;
use crate::templates::Templates;

/// What the tasks of the store use.
pub(super) struct SharedParts {
    pub(super) clock: Clock,
    pub(super) cache: Cache,
    pub(super) metrics: NotifyMetrics,
    pub(super) templates: Arc<ArcSwap<Templates>>,
    pub(super) actors: ActorClient,
    pub(super) providers: Arc<ProviderPool>,
    pub(super) suppression: Arc<Suppression>,
    pub(super) tracer: Option<Tracer>,
    /// Cancelled at shutdown: no attempt is started afterwards.
    pub(super) stop_delivery: CancellationToken,
    pub(super) dispatch_state: Arc<DispatchState>,
    /// The retention time of records.
    pub(super) retention: Duration,
}

/// The tasks of the open store.
pub(super) struct StoreTasks {
    context: DispatchContext,
    opened: Database,
    committer: GroupCommitter,
    result_writer: ResultWriter,
    maintenance: StoreMaintenance,
}

/// Opens the database and migrates its tables. Returns it with its clock.
///
/// # Errors
/// Exit code 69 if it is unavailable.
pub(super) async fn open_store(
    config: &Config,
    machine: &Clock,
) -> Result<(Database, Store, Clock), Exit> {
    let opened = Database::open(&config.database, config.database_options()).await?;
    let store = Store::open(&opened, config.queue.connections).await?;
    let clock = opened.clock(machine).await?;
    Ok((opened, store, clock))
}

// === impl SharedParts ===

impl SharedParts {
    /// Creates the tasks of the store, and registers a worker lease. Nothing is claimed
    /// yet.
    pub(super) async fn build(
        &self,
        (opened, store): (Database, Store),
        availability: Dependency,
    ) -> (SubmissionQueue, StoreTasks) {
        let clock = self.clock.clone();
        let workers = WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store).await;
        let executor = AttemptExecutor {
            templates: Arc::clone(&self.templates),
            actors: self.actors.clone(),
            store: store.clone(),
            providers: Arc::clone(&self.providers),
            suppression: Arc::clone(&self.suppression),
            unverified: UnverifiedQuota::new(self.cache.clone(), clock.clone()),
        };
        let (completed, completed_jobs) = mpsc::unbounded_channel();
        let runner = AttemptRunner::new(
            executor,
            clock.clone(),
            Arc::clone(&workers),
            completed,
            self.stop_delivery.clone(),
            self.tracer.clone(),
        );
        let context = DispatchContext {
            sequence: Arc::new(OrderSequence::new(clock.clone())),
            dispatch_state: Arc::clone(&self.dispatch_state),
            metrics: self.metrics.clone(),
            store,
            clock,
            workers,
            runner,
        };
        let (submissions, committer) = SubmissionQueue::open(context.clone());
        let maintenance = self.maintenance(&context, opened.clone(), availability);
        let tasks = StoreTasks {
            result_writer: ResultWriter::new(&context, completed_jobs),
            context,
            opened,
            committer,
            maintenance,
        };
        (submissions, tasks)
    }

    fn maintenance(
        &self,
        context: &DispatchContext,
        opened: Database,
        availability: Dependency,
    ) -> StoreMaintenance {
        let metrics = &context.metrics;
        let (dependencies, registry) = (metrics.dependencies(), metrics.registry());
        StoreMaintenance {
            statements: StatementHealth::new(&opened, dependencies, &registry),
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            suppression: Arc::clone(&self.suppression),
            metrics: context.metrics.clone(),
            database: availability,
            opened,
            retention: self.retention,
        }
    }
}

// === impl StoreTasks ===

impl StoreTasks {
    /// Starts the tasks. Deliveries stop with `stop_delivery`, the others of `background` with `stop`.
    pub(super) fn start(
        self,
        stop_delivery: &CancellationToken,
        background: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> DeliveryTasks {
        let (context, mut dispatch_tasks) = (self.context, JoinSet::new());
        background.spawn(self.maintenance.run(stop.clone()));
        background.spawn(Arc::clone(&context.workers).run(stop.clone()));
        let mover = DelayedRowMover {
            store: context.store.clone(),
            clock: context.clock.clone(),
            dispatch_state: Arc::clone(&context.dispatch_state),
        };
        background.spawn(mover.run(stop_delivery.clone()));
        for channel in Channel::ALL {
            let dispatcher = Dispatcher::new(channel, &context);
            dispatch_tasks.spawn(dispatcher.run(stop_delivery.clone()));
        }
        DeliveryTasks {
            dispatch_tasks,
            committer: tokio::spawn(self.committer.run()),
            result_writer: tokio::spawn(self.result_writer.run()),
            context,
            opened: self.opened,
        }
    }
}
