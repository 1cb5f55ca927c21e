//! Batched reads of notification snapshots. Requests that arrive while a read is in flight are
//! served by the next statement. Recent snapshots are cached.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postern_common::{Code, Problem};
use tokio::sync::{mpsc, oneshot};

use crate::notification::NotificationId;
use crate::store::{Recent, Snapshot, Store};

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
    recent: Arc<Recent>,
}

/// The task that reads snapshots in batches.
#[derive(Debug)]
pub(crate) struct StatusBatcher {
    store: Store,
    recent: Arc<Recent>,
    queue: mpsc::Receiver<PendingRead>,
}

#[derive(Debug)]
struct PendingRead {
    id: NotificationId,
    reply: oneshot::Sender<Result<Option<Arc<Snapshot>>, Problem>>,
}

// === impl StatusReader ===

impl StatusReader {
    /// Creates a reader and the batcher that serves it.
    #[must_use]
    pub(crate) fn open(store: Store, recent: Arc<Recent>) -> (Self, StatusBatcher) {
        let (sender, queue) = mpsc::channel(MAX_PENDING_READS);
        (
            Self {
                queue: sender,
                recent: Arc::clone(&recent),
            },
            StatusBatcher {
                store,
                recent,
                queue,
            },
        )
    }

    /// Returns the cached snapshot of a notification, if there is one. Another replica may have
    /// written a newer state.
    #[must_use]
    pub(crate) fn recent(&self, id: NotificationId) -> Option<Arc<Snapshot>> {
        self.recent.get(id)
    }

    /// Returns the snapshot of a notification, without its variables, which no status shows.
    ///
    /// # Errors
    /// 503 if the store is unavailable or the queue is full.
    pub(crate) async fn read(&self, id: NotificationId) -> Result<Option<Arc<Snapshot>>, Problem> {
        let (reply, answer) = oneshot::channel();
        let pending = PendingRead { id, reply };
        self.queue
            .try_send(pending)
            .map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
        match tokio::time::timeout(READ_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
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
            let (store, recent) = (self.store.clone(), Arc::clone(&self.recent));
            tokio::spawn(async move {
                answer(&store, &recent, batch).await;
                drop(slot);
            });
        }
    }
}

async fn answer(store: &Store, recent: &Recent, batch: Vec<PendingRead>) {
    let mut ids: Vec<NotificationId> = batch.iter().map(|pending| pending.id).collect();
    ids.sort_unstable();
    ids.dedup();
    recent.begin(&ids);
    let found: Result<HashMap<_, _>, Problem> = match store.read(&ids).await {
        Ok(found) => {
            let found: Vec<_> = found.into_iter().map(without_variables).collect();
            recent.end(&ids, &found);
            Ok(found
                .into_iter()
                .map(|snapshot| (snapshot.id, snapshot))
                .collect())
        }
        Err(error) => {
            recent.end(&ids, &[]);
            tracing::warn!(%error, "status read failed");
            Err(Problem::new(Code::Unavailable))
        }
    };
    for pending in batch {
        let answer = found
            .as_ref()
            .map(|found| found.get(&pending.id).cloned())
            .map_err(Clone::clone);
        let _ = pending.reply.send(answer);
    }
}

/// Removes the variables, which may be large and are not part of a status.
fn without_variables(mut snapshot: Snapshot) -> Arc<Snapshot> {
    snapshot.record.variables = String::new();
    Arc::new(snapshot)
}
