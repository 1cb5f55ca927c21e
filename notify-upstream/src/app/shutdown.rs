//! Graceful shutdown: the tasks that it waits for, in which order and for how long.

use std::sync::Arc;

use postern_store::database::Database;
use tokio::task::{JoinHandle, JoinSet};

use super::FINAL_WRITE_TIMEOUT;
use crate::dispatch::AttemptRunner;
use crate::lease::WorkerRegistry;
use crate::store::Store;

/// Retires the leases and closes the connections. With an unresponsive store the lease expires
/// instead.
pub(super) async fn retire_workers(workers: &WorkerRegistry, store: &Store, opened: &Database) {
    let leaving = async {
        workers.retire_all().await;
        store.close().await;
        opened.close().await;
    };
    if tokio::time::timeout(FINAL_WRITE_TIMEOUT, leaving)
        .await
        .is_err()
    {
        tracing::warn!("shutdown without retiring the worker, lease expires by itself");
    }
}

/// The tasks that shutdown waits for.
pub(super) struct DeliveryTasks {
    pub(super) workers: Arc<WorkerRegistry>,
    pub(super) committer: JoinHandle<()>,
    pub(super) dispatch_tasks: JoinSet<()>,
    pub(super) runner: Arc<AttemptRunner>,
    pub(super) result_writer: JoinHandle<()>,
}

impl DeliveryTasks {
    /// Waits, after new attempts have been stopped, until the last result is written.
    pub(super) async fn wait(mut self) {
        tracing::info!("requests drained, waiting for deliveries");
        // No more submissions arrive: the committer commits the pending ones and ends. Claims in
        // progress complete and their rows are released; otherwise they are recovered by other
        // workers.
        let claims_completed = async { while self.dispatch_tasks.join_next().await.is_some() {} };
        let written = tokio::time::timeout(FINAL_WRITE_TIMEOUT, self.committer);
        if let (_, Err(_)) = tokio::join!(
            written,
            tokio::time::timeout(FINAL_WRITE_TIMEOUT, claims_completed)
        ) {
            self.workers.mark_suspect(&self.workers.current());
            self.dispatch_tasks.shutdown().await;
        }
        // Leases are renewed until then. Each call has its own deadline, so no further one is
        // needed here.
        self.runner.wait_until_idle().await;
        drop(self.runner);
        let written = tokio::time::timeout(FINAL_WRITE_TIMEOUT, self.result_writer).await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::warn!("shutdown with unwritten results");
            return;
        }
        tracing::info!("deliveries drained");
    }
}
