//! The shards of a process: opening, tasks and shutdown of each.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use postern_common::Clock;
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::database::{Database, DatabaseOptions};
use postern_common::dependency::Dependency;
use postern_common::exit::Exit;
use postern_common::trace::Tracer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::shutdown::{DeliveryTasks, retire_workers};
use super::unavailable;
use crate::config::Config;
use crate::delivery::actors::ActorClient;
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::pool::ProviderPool;
use crate::delivery::suppression::SuppressionCache;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{
    AttemptRunner, DispatchContext, DispatchState, Dispatcher, ResultWriter, WakeupPublisher,
};
use crate::housekeeping::{DelayedRowMover, StoreMaintenance};
use crate::http::ApiState;
use crate::intake::group_commit::{GroupCommitter, SubmissionQueue};
use crate::lease::{LeaseClock, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, OrderSequence, ShardNumber};
use crate::shard::{Shard, ShardAge};
use crate::status::reader::{StatusBatcher, StatusReader};
use crate::store::{SnapshotCache, Store};
use crate::templates::Templates;

/// Time between two attempts to open a shard.
const REOPEN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum time for which the start of the process waits for a shard. It is less than
/// [`LEASE_TIMEOUT`](crate::lease::LEASE_TIMEOUT), because the leases of the shards that have been
/// opened are not renewed before all have been tried.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(8);

/// How databases are opened.
#[derive(Clone, Debug)]
pub(super) struct StoreSettings {
    options: DatabaseOptions,
    queue_connections: u32,
    retention: Duration,
    /// The numbers of the shards that this process delivers for.
    work_on: Vec<ShardNumber>,
    is_sharded: bool,
}

/// What the shards of a process share.
#[derive(Clone)]
pub(super) struct SharedParts {
    pub(super) clock: Clock,
    pub(super) cache: Cache,
    pub(super) metrics: NotifyMetrics,
    pub(super) templates: Arc<ArcSwap<Templates>>,
    pub(super) actors: ActorClient,
    pub(super) providers: Arc<ProviderPool>,
    pub(super) suppression: Arc<SuppressionCache>,
    pub(super) tracer: Option<Tracer>,
    /// Cancelled at shutdown: no attempt is started afterwards.
    pub(super) stop_delivery: CancellationToken,
    /// The state of each shard. It exists before the shard is open, because pauses of providers
    /// wake the dispatchers of all.
    pub(super) dispatch_states: Arc<[Arc<DispatchState>]>,
    pub(super) settings: StoreSettings,
}

/// The tasks of a shard that has been opened.
pub(super) struct ShardTasks {
    context: DispatchContext,
    opened: Database,
    batcher: StatusBatcher,
    committer: GroupCommitter,
    result_writer: ResultWriter,
    maintenance: StoreMaintenance,
}

/// The running tasks of a shard.
pub(super) struct RunningShard {
    delivery: DeliveryTasks,
    rest: DrainedShard,
}

/// A shard whose last result has been written.
pub(super) struct DrainedShard {
    background: JoinSet<()>,
    stop: CancellationToken,
    workers: Arc<WorkerRegistry>,
    store: Store,
    opened: Database,
}

/// Opens a shard other than 0 when its database is available, and runs it.
pub(super) struct ShardOpener {
    pub(super) number: ShardNumber,
    pub(super) url: String,
    pub(super) parts: SharedParts,
    pub(super) availability: Arc<Dependency>,
    /// The tasks of the shard when it has been opened and not started.
    pub(super) opened: Option<ShardTasks>,
    /// Not owned: the committers end when the API, which submits to them, has been dropped.
    pub(super) api: Weak<ApiState>,
}

// === impl StoreSettings ===

impl StoreSettings {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            options: config.database_options(),
            queue_connections: config.queue.connections,
            retention: config.queue.retention,
            work_on: config.database.work_on.clone(),
            is_sharded: config.database.shards.len() > 1,
        }
    }

    /// Opens the database of a shard, migrates its tables and creates the partitions of the near
    /// future.
    ///
    /// # Errors
    /// Exit code 64 if it has been used as another shard; 69 if it is unavailable.
    pub(super) async fn open(
        &self,
        (number, url): (ShardNumber, &str),
        clock: &Clock,
    ) -> Result<(Database, Store), Exit> {
        let opened = Database::open(url, self.options.clone()).await?;
        let store = Store::open(&opened, self.queue_connections).await?;
        store.use_as_shard(number, &opened.label()).await?;
        let now = clock.now();
        let retention_ms = i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX);
        let keep_from = Timestamp(now.0 - retention_ms);
        store.maintain(now, keep_from).await.map_err(unavailable)?;
        Ok((opened, store))
    }
}

// === impl SharedParts ===

impl SharedParts {
    /// Creates a shard from its open database, and registers a worker lease. Nothing is claimed
    /// yet.
    ///
    /// # Errors
    /// Exit code 69 if the store is unavailable.
    pub(super) async fn build(
        &self,
        number: ShardNumber,
        (opened, store): (Database, Store),
        availability: Arc<Dependency>,
    ) -> Result<(Shard, ShardTasks), Exit> {
        let clock = self.clock.clone();
        let workers = WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store)
            .await
            .map_err(unavailable)?;
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
        let metrics = match self.settings.is_sharded {
            true => self.metrics.of_shard(number),
            false => self.metrics.clone(),
        };
        let context = DispatchContext {
            snapshot_cache: SnapshotCache::new(clock.clone()),
            sequence: Arc::new(OrderSequence::of_shard(clock.clone(), number)),
            dispatch_state: Arc::clone(&self.dispatch_states[usize::from(number)]),
            metrics,
            store,
            clock,
            workers,
            runner,
        };
        let age = Arc::new(ShardAge::default());
        let (submissions, committer) = SubmissionQueue::open(context.clone());
        let (reader, batcher) =
            StatusReader::open(context.store.clone(), Arc::clone(&context.snapshot_cache));
        let maintenance = self.maintenance(number, &context, opened.clone(), &availability, &age);
        if self.settings.is_sharded {
            // It decides where keys are looked up, and therefore precedes the first request.
            maintenance.read_age().await.map_err(unavailable)?;
        }
        let shard = Shard {
            number,
            store: context.store.clone(),
            submissions,
            reader,
            snapshot_cache: Arc::clone(&context.snapshot_cache),
            dispatch_state: Arc::clone(&context.dispatch_state),
            availability,
            age,
        };
        let tasks = ShardTasks {
            result_writer: ResultWriter::new(&context, completed_jobs),
            context,
            opened,
            batcher,
            committer,
            maintenance,
        };
        Ok((shard, tasks))
    }

    fn maintenance(
        &self,
        number: ShardNumber,
        context: &DispatchContext,
        opened: Database,
        availability: &Arc<Dependency>,
        age: &Arc<ShardAge>,
    ) -> StoreMaintenance {
        let is_first = number == 0;
        StoreMaintenance {
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            suppression: is_first.then(|| Arc::clone(&self.suppression)),
            dispatch_state: Arc::clone(&context.dispatch_state),
            metrics: context.metrics.clone(),
            database: Arc::clone(availability),
            opened,
            retention: self.settings.retention,
            age: self.settings.is_sharded.then(|| Arc::clone(age)),
            is_worked_on: self.settings.work_on.contains(&number),
        }
    }
}

// === impl ShardTasks ===

impl ShardTasks {
    /// Starts the tasks. Deliveries stop with `stop_delivery`, all others when the shard is closed.
    /// Without work on the shard, its notifications are accepted, read and maintained, and other
    /// processes deliver them.
    pub(super) fn start(self, stop_delivery: &CancellationToken) -> RunningShard {
        let (stop, mut background) = (CancellationToken::new(), JoinSet::new());
        let (context, mut dispatch_tasks) = (self.context, JoinSet::new());
        let is_worked_on = self.maintenance.is_worked_on;
        background.spawn(self.maintenance.run(stop.clone()));
        background.spawn(Arc::clone(&context.workers).run(stop.clone()));
        if is_worked_on {
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
        }
        let publisher = start_publisher(&context, &mut background);
        background.spawn(self.batcher.run());
        RunningShard {
            delivery: DeliveryTasks {
                workers: Arc::clone(&context.workers),
                dispatch_tasks,
                committer: tokio::spawn(self.committer.run()),
                runner: context.runner,
                result_writer: tokio::spawn(self.result_writer.run()),
                publisher,
            },
            rest: DrainedShard {
                background,
                stop,
                workers: context.workers,
                store: context.store,
                opened: self.opened,
            },
        }
    }
}

/// Starts the exchange of wake-ups with other replicas, if the store is shared.
fn start_publisher(
    context: &DispatchContext,
    background: &mut JoinSet<()>,
) -> Option<Arc<WakeupPublisher>> {
    let state = Arc::clone(&context.dispatch_state);
    let publisher = Arc::new(WakeupPublisher::new(context.store.clone(), state)?);
    background.spawn(Arc::clone(&publisher).listen());
    background.spawn(Arc::clone(&publisher).run(Arc::clone(&context.workers)));
    Some(publisher)
}

// === impl RunningShard ===

impl RunningShard {
    /// Waits, after requests and new attempts have been stopped, until the last result is written.
    pub(super) async fn drain(self) -> DrainedShard {
        self.delivery.wait().await;
        self.rest
    }
}

// === impl DrainedShard ===

impl DrainedShard {
    /// Stops the other tasks, retires the leases and closes the connections.
    pub(super) async fn close(mut self) {
        self.stop.cancel();
        self.background.shutdown().await;
        retire_workers(&self.workers, &self.store, &self.opened).await;
    }
}

// === impl ShardOpener ===

impl ShardOpener {
    /// Opens the shard if its database is available, before the process is ready.
    ///
    /// # Errors
    /// Exit code 64 if the configuration is wrong: no later attempt would succeed.
    pub(super) async fn prepare(&mut self) -> Result<(), Exit> {
        let opening = tokio::time::timeout(PREPARE_TIMEOUT, self.open());
        let late = || {
            let seconds = PREPARE_TIMEOUT.as_secs();
            Err(Exit::unavailable(format!("not opened within {seconds} s")))
        };
        match opening.await.unwrap_or_else(|_| late()) {
            Err(exit) if exit.is_usage() => Err(exit),
            opened => {
                self.opened = self.record(opened);
                Ok(())
            }
        }
    }

    /// Runs the shard until `drained` is cancelled, which says that the last request has been
    /// answered. While the database is unavailable, it is tried again.
    pub(super) async fn run(mut self, drained: CancellationToken) {
        let stop_delivery = self.parts.stop_delivery.clone();
        let tasks = loop {
            if let Some(tasks) = self.opened.take() {
                break tasks;
            }
            // An unresponsive database must not delay the shutdown: a lease that has been
            // registered meanwhile expires.
            let reopening = async {
                tokio::time::sleep(REOPEN_INTERVAL).await;
                let opened = self.open().await;
                self.record(opened)
            };
            self.opened = tokio::select! {
                () = stop_delivery.cancelled() => return,
                opened = reopening => opened,
            };
        };
        let running = tasks.start(&stop_delivery);
        drained.cancelled().await;
        running.drain().await.close().await;
    }

    async fn open(&self) -> Result<(Shard, ShardTasks), Exit> {
        let settings = &self.parts.settings;
        let database = (self.number, &*self.url);
        let opened = settings.open(database, &self.parts.clock).await?;
        let availability = Arc::clone(&self.availability);
        self.parts.build(self.number, opened, availability).await
    }

    /// Adds a shard that has been opened to those of the API, and returns its tasks.
    fn record(&self, opened: Result<(Shard, ShardTasks), Exit>) -> Option<ShardTasks> {
        match opened {
            Ok((shard, tasks)) => {
                tracing::info!(shard = self.number, "shard opened");
                self.api.upgrade()?.shards.insert(shard);
                Some(tasks)
            }
            Err(exit) => {
                self.availability.record_failure(exit.message());
                None
            }
        }
    }
}
