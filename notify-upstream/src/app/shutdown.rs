//! Graceful shutdown: the tasks that it waits for, in which order and for how long.

use postern_store::database::Database;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::FINAL_WRITE_TIMEOUT;
use crate::dispatch::DispatchContext;

/// The tasks that shutdown waits for, and the store that it closes.
pub(super) struct DeliveryTasks {
    pub(super) context: DispatchContext,
    pub(super) committer: JoinHandle<()>,
    pub(super) dispatch_tasks: JoinSet<()>,
    pub(super) result_writer: JoinHandle<()>,
    pub(super) opened: Database,
}

impl DeliveryTasks {
    /// Waits, after requests and new attempts have been stopped, until the last result is written.
    /// Then stops the background tasks, retires the leases and closes the connections.
    pub(super) async fn finish(mut self, stop: CancellationToken, mut background: JoinSet<()>) {
        tracing::info!("requests drained, waiting for deliveries");
        // No more submissions arrive: the committer commits the pending ones and ends. Claims in
        // progress complete and their rows are released; otherwise they are recovered by other
        // workers.
        let workers = self.context.workers;
        let claims_completed = async { while self.dispatch_tasks.join_next().await.is_some() {} };
        let written = timeout(FINAL_WRITE_TIMEOUT, self.committer);
        if let (_, Err(_)) = tokio::join!(written, timeout(FINAL_WRITE_TIMEOUT, claims_completed)) {
            workers.mark_suspect(&workers.current());
            self.dispatch_tasks.shutdown().await;
        }
        // Leases are renewed until then. Each call has its own deadline, so no further one is
        // needed here.
        self.context.runner.wait_until_idle().await;
        drop(self.context.runner);
        match timeout(FINAL_WRITE_TIMEOUT, self.result_writer).await {
            Ok(Ok(())) => tracing::info!("deliveries drained"),
            Ok(Err(_)) | Err(_) => tracing::warn!("shutdown with unwritten results"),
        }
        stop.cancel();
        background.shutdown().await;
        let leaving = async {
            workers.retire_all().await;
            self.context.store.close().await;
            self.opened.close().await;
        };
        if timeout(FINAL_WRITE_TIMEOUT, leaving).await.is_err() {
            tracing::warn!("shutdown without retiring the worker, lease expires by itself");
        }
    }
}
