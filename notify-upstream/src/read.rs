//! Reading the status: what is asked while one read is in flight makes up the next.

use std::collections::HashMap;
use std::sync::Arc;

use postern_common::{Code, Problem};
use tokio::sync::{mpsc, oneshot};

use crate::notification::NotificationId;
use crate::store::{Snapshot, Store};

/// Most ids of one read.
const BATCH: usize = 200;
/// Most questions that wait; beyond that the answer is 503.
const BACKLOG: usize = 8192;
/// Reads at once: one more than one keeps the store busy while an answer is unpacked.
const READS: usize = 2;

/// Asks.
#[derive(Clone, Debug)]
pub struct Reader {
    queue: mpsc::Sender<Question>,
}

/// Answers.
#[derive(Debug)]
pub struct Library {
    store: Store,
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
    pub fn open(store: Store) -> (Self, Library) {
        let (sender, queue) = mpsc::channel(BACKLOG);
        (Self { queue: sender }, Library { store, queue })
    }

    /// Everything that is known about a notification.
    ///
    /// # Errors
    /// 503 when the store is away or too many ask.
    pub async fn read(&self, id: NotificationId) -> Result<Option<Arc<Snapshot>>, Problem> {
        let (reply, answer) = oneshot::channel();
        let question = Question { id, reply };
        self.queue.try_send(question).map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
        answer.await.unwrap_or_else(|_| Err(Code::Unavailable.into()))
    }
}

// === impl Library ===

impl Library {
    /// Answers until the last reader is gone.
    pub async fn run(mut self) {
        let slots = Arc::new(tokio::sync::Semaphore::new(READS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let mut batch = Vec::with_capacity(16);
            if self.queue.recv_many(&mut batch, BATCH).await == 0 {
                return;
            }
            let store = self.store.clone();
            tokio::spawn(async move {
                answer(&store, batch).await;
                drop(slot);
            });
        }
    }
}

async fn answer(store: &Store, batch: Vec<Question>) {
    let mut ids: Vec<NotificationId> = batch.iter().map(|question| question.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let read = store.read(&ids).await;
    let found: Result<HashMap<_, _>, Problem> = match read {
        Ok(found) => Ok(found.into_iter().map(|snapshot| (snapshot.id, Arc::new(snapshot))).collect()),
        Err(error) => {
            tracing::warn!(%error, "cannot read");
            Err(Problem::new(Code::Unavailable))
        }
    };
    for question in batch {
        let answer = found.as_ref().map(|found| found.get(&question.id).cloned()).map_err(Clone::clone);
        let _ = question.reply.send(answer);
    }
}
