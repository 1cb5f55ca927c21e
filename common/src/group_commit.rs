//! Group commit: what arrives while a statement is in flight is the batch of the next one. No
//! statement is delayed to fill a batch.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

/// Items for which a new batch has room before it grows.
const INITIAL_BATCH_CAPACITY: usize = 64;

/// A handle that submits items, each of which gets a reply.
#[derive(Debug)]
pub struct Submitter<T, R> {
    queue: mpsc::Sender<Submission<T, R>>,
}

/// An item that waits for its batch.
#[derive(Debug)]
pub struct Submission<T, R> {
    /// What was submitted.
    pub item: T,
    /// Its submitter, which waits.
    pub reply: Reply<R>,
}

/// The submitter of an item.
#[derive(Debug)]
pub struct Reply<R> {
    sender: oneshot::Sender<R>,
    submitted_at: Instant,
}

/// The reason why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full. The item will not be processed.
    #[error("the queue is full")]
    Full,
    /// There was no reply in time. The item may have been processed.
    #[error("no reply in time")]
    TimedOut,
    /// The receiver has ended or has dropped the item.
    #[error("the receiver has ended")]
    Closed,
}

/// A queue from which a batch can be received.
pub trait BatchSource: Send {
    /// What the queue contains.
    type Item: Send;

    /// Waits until the queue is not empty, and moves at most `limit` items to `batch`. Returns
    /// their number, which is 0 if all senders have been dropped.
    fn receive(
        &mut self,
        batch: &mut Vec<Self::Item>,
        limit: usize,
    ) -> impl Future<Output = usize> + Send;
}

/// Creates a queue of at most `capacity` items.
#[must_use]
pub fn queue<T, R>(capacity: usize) -> (Submitter<T, R>, mpsc::Receiver<Submission<T, R>>) {
    let (queue, receiver) = mpsc::channel(capacity);
    (Submitter { queue }, receiver)
}

/// Waits for items and returns at most `limit` of them. Returns an empty batch if all senders have
/// been dropped.
pub async fn next_batch<S: BatchSource>(source: &mut S, limit: usize) -> Vec<S::Item> {
    let mut batch = new_batch();
    source.receive(&mut batch, limit).await;
    batch
}

/// Processes batches of at most `limit()` items, at most `concurrency` at a time, until all senders
/// have been dropped and the last batch is finished.
pub async fn process_batches<S: BatchSource, F: Future<Output = ()> + Send>(
    mut source: S,
    concurrency: usize,
    limit: impl Fn() -> usize,
    process: impl Fn(Vec<S::Item>) -> F,
) {
    let (mut batch, mut in_flight) = (new_batch(), FuturesUnordered::new());
    loop {
        tokio::select! {
            count = source.receive(&mut batch, limit()), if in_flight.len() < concurrency => {
                if count == 0 {
                    break;
                }
                in_flight.push(process(std::mem::replace(&mut batch, new_batch())));
            }
            Some(()) = in_flight.next(), if !in_flight.is_empty() => {}
        }
    }
    while in_flight.next().await.is_some() {}
}

fn new_batch<T>() -> Vec<T> {
    Vec::with_capacity(INITIAL_BATCH_CAPACITY)
}

// === impl Submitter ===

impl<T, R> Submitter<T, R> {
    /// Submits an item and returns the reply. Waits while the queue is full.
    ///
    /// # Errors
    /// [`SubmitError::Closed`].
    pub async fn submit(&self, item: T) -> Result<R, SubmitError> {
        let (submission, reply) = Submission::new(item);
        let queued = self.queue.send(submission).await;
        queued.map_err(|_| SubmitError::Closed)?;
        reply.await.map_err(|_| SubmitError::Closed)
    }

    /// Submits an item, unless the queue is full, and returns the reply.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn try_submit(&self, item: T, timeout: Duration) -> Result<R, SubmitError> {
        let (submission, reply) = Submission::new(item);
        self.queue
            .try_send(submission)
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SubmitError::Full,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Closed,
            })?;
        match tokio::time::timeout(timeout, reply).await {
            Ok(reply) => reply.map_err(|_| SubmitError::Closed),
            Err(_) => Err(SubmitError::TimedOut),
        }
    }
}

impl<T, R> Clone for Submitter<T, R> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

// === impl Submission ===

impl<T, R> Submission<T, R> {
    fn new(item: T) -> (Self, oneshot::Receiver<R>) {
        let (sender, receiver) = oneshot::channel();
        let reply = Reply {
            sender,
            submitted_at: Instant::now(),
        };
        (Self { item, reply }, receiver)
    }
}

// === impl Reply ===

impl<R> Reply<R> {
    /// Sends the reply. A submitter that no longer waits is no error.
    pub fn send(self, reply: R) {
        let _no_longer_waits = self.sender.send(reply);
    }

    /// Returns the time since the item was submitted.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.submitted_at.elapsed()
    }
}

impl<T: Send> BatchSource for mpsc::Receiver<T> {
    type Item = T;

    async fn receive(&mut self, batch: &mut Vec<T>, limit: usize) -> usize {
        self.recv_many(batch, limit).await
    }
}

impl<T: Send> BatchSource for mpsc::UnboundedReceiver<T> {
    type Item = T;

    async fn receive(&mut self, batch: &mut Vec<T>, limit: usize) -> usize {
        self.recv_many(batch, limit).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;

    /// The sizes of the batches that were started, and permits that end one each.
    #[derive(Clone)]
    struct Processor {
        sizes: Arc<Mutex<Vec<usize>>>,
        permits: Arc<Semaphore>,
    }

    impl Processor {
        fn start(concurrency: usize, limit: usize) -> (Self, Submitter<u32, u32>) {
            let (submitter, receiver) = queue::<u32, u32>(16);
            let processor = Self {
                sizes: Arc::default(),
                permits: Arc::new(Semaphore::new(0)),
            };
            let running = processor.clone();
            tokio::spawn(async move {
                let process = |batch| running.process(batch);
                process_batches(receiver, concurrency, || limit, process).await;
            });
            (processor, submitter)
        }

        async fn process(&self, batch: Vec<Submission<u32, u32>>) {
            self.sizes.lock().push(batch.len());
            self.permits.acquire().await.expect("open").forget();
            for submission in batch {
                submission.reply.send(submission.item * 10);
            }
        }

        async fn until_started(&self, batches: usize) -> Vec<usize> {
            loop {
                let sizes = self.sizes.lock().clone();
                if sizes.len() >= batches {
                    return sizes;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    fn submit(submitter: &Submitter<u32, u32>, item: u32) -> tokio::task::JoinHandle<u32> {
        let submitter = submitter.clone();
        tokio::spawn(async move { submitter.submit(item).await.expect("a reply") })
    }

    #[tokio::test]
    async fn items_that_arrive_during_a_batch_form_the_next() {
        let (processor, submitter) = Processor::start(1, 3);
        let mut replies = vec![submit(&submitter, 0)];
        assert_eq!(processor.until_started(1).await, [1]);
        replies.extend((1..=4).map(|item| submit(&submitter, item)));
        while submitter.queue.capacity() != 12 {
            tokio::task::yield_now().await;
        }
        processor.permits.add_permits(3);
        for (item, reply) in (0..).zip(replies) {
            assert_eq!(reply.await.expect("no panic"), item * 10);
        }
        assert_eq!(processor.until_started(3).await, [1, 3, 1]);
    }

    #[tokio::test]
    async fn as_many_batches_as_allowed_are_in_flight() {
        let (processor, submitter) = Processor::start(2, 8);
        let mut replies = Vec::new();
        for batches in 1..=2 {
            replies.push(submit(&submitter, 1));
            processor.until_started(batches).await;
        }
        replies.push(submit(&submitter, 1));
        while submitter.queue.capacity() != 15 {
            tokio::task::yield_now().await;
        }
        assert_eq!(processor.until_started(2).await, [1, 1], "the third waits");
        processor.permits.add_permits(1);
        assert_eq!(processor.until_started(3).await, [1, 1, 1]);
        processor.permits.add_permits(2);
        for reply in replies {
            reply.await.expect("no panic");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn full_queue_and_missing_reply_are_errors() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let (submitter, mut receiver) = queue::<u32, u32>(1);
        let waiting = submitter.try_submit(1, TIMEOUT);
        let (first, second) = tokio::join!(waiting, submitter.try_submit(2, TIMEOUT));
        assert_eq!(first, Err(SubmitError::TimedOut));
        assert_eq!(second, Err(SubmitError::Full));
        assert_eq!(next_batch(&mut receiver, 8).await.len(), 1);
        drop(receiver);
        let closed = submitter.try_submit(3, TIMEOUT).await;
        assert_eq!(closed, Err(SubmitError::Closed));
        assert_eq!(submitter.submit(4).await, Err(SubmitError::Closed));
    }
}
