//! Batched reads of notification snapshots. Requests that arrive while a read is in flight are
//! served by the next statement. Recent snapshots are cached.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postern_common::{Code, Problem};
use tokio::sync::{mpsc, oneshot};

use crate::notification::NotificationId;
use crate::store::{NotificationSnapshot, SnapshotCache, Store};

/// Maximum number of identifiers in one read.
const MAX_IDS_PER_READ: usize = 200;
/// Maximum number of requests that wait. Further ones are rejected with 503.
const MAX_PENDING_READS: usize = 8192;
/// Number of concurrent reads. Two keep the store busy while a result is decoded.
const CONCURRENT_READS: usize = 2;
/// Maximum time that a request waits. Afterwards the response is 503.
const READ_TIMEOUT: Duration = Duration::from_millis(2_500);

/// A handle that submits reads to the [`StatusBatcher`].
#[derive(Clone, Debug)]
pub(crate) struct StatusReader {
    queue: mpsc::Sender<PendingRead>,
    snapshot_cache: Arc<SnapshotCache>,
}

/// The task that reads snapshots in batches.
#[derive(Debug)]
pub(crate) struct StatusBatcher {
    store: Store,
    snapshot_cache: Arc<SnapshotCache>,
    queue: mpsc::Receiver<PendingRead>,
}

#[derive(Debug)]
struct PendingRead {
    id: NotificationId,
    reply: oneshot::Sender<Result<Option<Arc<NotificationSnapshot>>, Problem>>,
}

// === impl StatusReader ===

impl StatusReader {
    /// Creates a reader and the batcher that serves it.
    #[must_use]
    pub(crate) fn open(store: Store, snapshot_cache: Arc<SnapshotCache>) -> (Self, StatusBatcher) {
        let (sender, queue) = mpsc::channel(MAX_PENDING_READS);
        (
            Self {
                queue: sender,
                snapshot_cache: Arc::clone(&snapshot_cache),
            },
            StatusBatcher {
                store,
                snapshot_cache,
                queue,
            },
        )
    }

    /// Returns the cached snapshot of a notification, if there is one. Another replica may have
    /// written a newer state.
    #[must_use]
    pub(crate) fn recent(&self, id: NotificationId) -> Option<Arc<NotificationSnapshot>> {
        self.snapshot_cache.get(id)
    }

    /// Returns the snapshot of a notification, without its variables, which no status shows.
    ///
    /// # Errors
    /// 503 if the store is unavailable or the queue is full.
    pub(crate) async fn read(
        &self,
        id: NotificationId,
    ) -> Result<Option<Arc<NotificationSnapshot>>, Problem> {
        let (reply, result) = oneshot::channel();
        let pending = PendingRead { id, reply };
        self.queue
            .try_send(pending)
            .map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
        match tokio::time::timeout(READ_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Problem::new(Code::Unavailable).retry_after(1)),
        }
    }
}

// === impl StatusBatcher ===

impl StatusBatcher {
    /// Serves reads until every [`StatusReader`] has been dropped.
    pub(crate) async fn run(mut self) {
        let slots = Arc::new(tokio::sync::Semaphore::new(CONCURRENT_READS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let mut batch = Vec::with_capacity(16);
            if self.queue.recv_many(&mut batch, MAX_IDS_PER_READ).await == 0 {
                return;
            }
            let (store, snapshot_cache) = (self.store.clone(), Arc::clone(&self.snapshot_cache));
            tokio::spawn(async move {
                read_batch(&store, &snapshot_cache, batch).await;
                drop(slot);
            });
        }
    }
}

async fn read_batch(store: &Store, snapshot_cache: &SnapshotCache, batch: Vec<PendingRead>) {
    let mut ids: Vec<NotificationId> = batch.iter().map(|pending| pending.id).collect();
    ids.sort_unstable();
    ids.dedup();
    snapshot_cache.begin_read(&ids);
    let found: Result<HashMap<_, _>, Problem> = match store.read(&ids).await {
        Ok(found) => {
            let found: Vec<_> = found.into_iter().map(without_variables).collect();
            snapshot_cache.end_read(&ids, &found);
            Ok(found
                .into_iter()
                .map(|snapshot| (snapshot.id, snapshot))
                .collect())
        }
        Err(error) => {
            snapshot_cache.end_read(&ids, &[]);
            tracing::warn!(%error, "status read failed");
            Err(Problem::new(Code::Unavailable))
        }
    };
    for pending in batch {
        let result = found
            .as_ref()
            .map(|found| found.get(&pending.id).cloned())
            .map_err(Clone::clone);
        let _ = pending.reply.send(result);
    }
}

/// Removes the variables, which may be large and are not part of a status.
fn without_variables(mut snapshot: NotificationSnapshot) -> Arc<NotificationSnapshot> {
    snapshot.record.variables = String::new();
    Arc::new(snapshot)
}
