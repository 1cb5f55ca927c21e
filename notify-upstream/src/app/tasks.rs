//! The tasks of the store: start and shutdown.

use std::sync::Arc;
use std::time::Duration;

use postern_store::database::{Database, StatementHealth};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::shutdown::DeliveryTasks;
use crate::dispatch::{DispatchContext, Dispatcher, ResultWriter};
use crate::housekeeping::{DelayedRowMover, StoreMaintenance};
use crate::intake::group_commit::GroupCommitter;
use crate::notification::Channel;

/// The tasks of the open store.
pub(super) struct StoreTasks {
    pub(super) context: DispatchContext,
    pub(super) database: Database,
    pub(super) committer: GroupCommitter,
    pub(super) result_writer: ResultWriter,
    pub(super) retention: Duration,
}

impl StoreTasks {
    /// Starts the tasks. Deliveries stop with `stop_delivery`, the others of `background` with `stop`.
    pub(super) fn start(
        self,
        stop_delivery: &CancellationToken,
        background: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> DeliveryTasks {
        let (context, mut dispatch_tasks) = (self.context, JoinSet::new());
        let metrics = &context.metrics;
        let (dependencies, database) = (&metrics.dependencies, &self.database);
        let maintenance = StoreMaintenance {
            statements: StatementHealth::new(database, dependencies, &metrics.registry),
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            suppression: Arc::clone(&context.runner.executor.suppression),
            metrics: metrics.clone(),
            database: dependencies.required("database", database.label()),
            opened: database.clone(),
            retention: self.retention,
        };
        background.spawn(maintenance.run(stop.clone()));
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
            opened: self.database,
        }
    }
}
