//! Batched reads of notification snapshots. Requests that arrive while a read is in flight are
//! served by the next statement. Recent snapshots are cached.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::FutureExt;
use postern_common::group_commit::{self, Submission, Submitter, process_batches};
use postern_common::trace::{Scope, run_within};
use postern_common::{Code, Problem};
use tokio::sync::mpsc;

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
    queue: Submitter<NotificationId, ReadResult>,
    snapshot_cache: Arc<SnapshotCache>,
}

/// The task that reads snapshots in batches.
#[derive(Debug)]
pub(crate) struct StatusBatcher {
    store: Store,
    snapshot_cache: Arc<SnapshotCache>,
    queue: mpsc::Receiver<PendingRead>,
}

type ReadResult = Result<Option<Arc<NotificationSnapshot>>, Problem>;
type PendingRead = Submission<NotificationId, ReadResult>;

// === impl StatusReader ===

impl StatusReader {
    /// Creates a reader and the batcher that serves it.
    #[must_use]
    pub(crate) fn open(store: Store, snapshot_cache: Arc<SnapshotCache>) -> (Self, StatusBatcher) {
        let (submitter, queue) = group_commit::queue(MAX_PENDING_READS);
        (
            Self {
                queue: submitter,
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
    pub(crate) async fn read(&self, id: NotificationId) -> ReadResult {
        let result = self.queue.try_submit(id, READ_TIMEOUT).await;
        result.unwrap_or_else(|| Err(Problem::new(Code::Unavailable).retry_after(1)))
    }
}

// === impl StatusBatcher ===

impl StatusBatcher {
    /// Serves reads until every [`StatusReader`] has been dropped.
    pub(crate) async fn run(mut self) {
        let read = |batch| {
            let (store, snapshot_cache) = (self.store.clone(), Arc::clone(&self.snapshot_cache));
            let reading =
                tokio::spawn(async move { read_batch(&store, &snapshot_cache, batch).await });
            reading.map(drop)
        };
        let receive = |cx: &mut Context<'_>, batch: &mut Vec<_>, limit| {
            self.queue.poll_recv_many(cx, batch, limit)
        };
        process_batches(receive, CONCURRENT_READS, || MAX_IDS_PER_READ, read).await;
    }
}

async fn read_batch(store: &Store, snapshot_cache: &SnapshotCache, batch: Vec<PendingRead>) {
    let mut ids: Vec<NotificationId> = batch.iter().map(|pending| pending.item).collect();
    ids.sort_unstable();
    ids.dedup();
    snapshot_cache.begin_read(&ids);
    let scope = Scope::of_batch(batch.iter().filter_map(|pending| pending.reply.scope()));
    let read = run_within(scope, store.read(&ids)).await;
    let found: Result<HashMap<_, _>, Problem> = match read {
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
            .map(|found| found.get(&pending.item).cloned())
            .map_err(Clone::clone);
        pending.reply.send(result);
    }
}

/// Removes the variables, which may be large and are not part of a status.
fn without_variables(mut snapshot: NotificationSnapshot) -> Arc<NotificationSnapshot> {
    snapshot.record.variables = String::new();
    Arc::new(snapshot)
}
