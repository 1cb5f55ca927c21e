//! Reading the status: what was read lately is remembered; what is asked while one read is in
//! flight makes up the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postern_common::{Code, Problem};
use tokio::sync::{mpsc, oneshot};

use crate::notification::NotificationId;
use crate::store::{Recent, Snapshot, Store};

/// Most ids of one read.
const BATCH: usize = 200;
/// Most questions that wait; beyond that the answer is 503.
const BACKLOG: usize = 8192;
/// Reads at once: one more than one keeps the store busy while an answer is unpacked.
const READS: usize = 2;
/// How long a question waits for its answer; then it is 503.
const READ_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Asks.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    queue: mpsc::Sender<Question>,
    recent: Arc<Recent>,
}

/// Answers.
#[derive(Debug)]
pub(crate) struct Library {
    store: Store,
    recent: Arc<Recent>,
    queue: mpsc::Receiver<Question>,
}

#[derive(Debug)]
struct Question {
    id: NotificationId,
    reply: oneshot::Sender<Result<Option<Arc<Snapshot>>, Problem>>,
}

// === impl Reader ===

impl Reader {
    /// A reader and who answers it.
    #[must_use]
    pub(crate) fn open(store: Store, recent: Arc<Recent>) -> (Self, Library) {
        let (sender, queue) = mpsc::channel(BACKLOG);
        (
            Self {
                queue: sender,
                recent: Arc::clone(&recent),
            },
            Library {
                store,
                recent,
                queue,
            },
        )
    }

    /// What was read of a notification a moment ago, if it was; another replica may know more by
    /// now.
    #[must_use]
    pub(crate) fn recent(&self, id: NotificationId) -> Option<Arc<Snapshot>> {
        self.recent.get(id)
    }

    /// Everything that is known about a notification, but its variables, which no status shows.
    ///
    /// # Errors
    /// 503 when the store is away or too many ask.
    pub(crate) async fn read(&self, id: NotificationId) -> Result<Option<Arc<Snapshot>>, Problem> {
        let (reply, answer) = oneshot::channel();
        let question = Question { id, reply };
        self.queue
            .try_send(question)
            .map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
        match tokio::time::timeout(READ_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Problem::new(Code::Unavailable).retry_after(1)),
        }
    }
}

// === impl Library ===

impl Library {
    /// Answers until the last reader is gone.
    pub(crate) async fn run(mut self) {
        let slots = Arc::new(tokio::sync::Semaphore::new(READS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let mut batch = Vec::with_capacity(16);
            if self.queue.recv_many(&mut batch, BATCH).await == 0 {
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

async fn answer(store: &Store, recent: &Recent, batch: Vec<Question>) {
    let mut ids: Vec<NotificationId> = batch.iter().map(|question| question.id).collect();
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
            tracing::warn!(%error, "cannot read");
            Err(Problem::new(Code::Unavailable))
        }
    };
    for question in batch {
        let answer = found
            .as_ref()
            .map(|found| found.get(&question.id).cloned())
            .map_err(Clone::clone);
        let _ = question.reply.send(answer);
    }
}

/// Variables may be large and are nobody's to see again.
fn without_variables(mut snapshot: Snapshot) -> Arc<Snapshot> {
    snapshot.record.variables = String::new();
    Arc::new(snapshot)
}
