//! Group commit: what arrives while a statement is in flight is the batch of the next one. No
//! statement is delayed to fill a batch.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

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

/// Creates a queue of at most `capacity` items.
#[must_use]
pub fn queue<T, R>(capacity: usize) -> (Submitter<T, R>, mpsc::Receiver<Submission<T, R>>) {
    let (queue, receiver) = mpsc::channel(capacity);
    (Submitter { queue }, receiver)
}

/// Processes batches of at most `limit` items, at most `concurrency` at a time, until `receive`
/// returns 0 (as `poll_recv_many` of a queue without senders) and the last batch is finished.
pub async fn process_batches<T, F: Future<Output = ()>>(
    mut receive: impl FnMut(&mut Context<'_>, &mut Vec<T>, usize) -> Poll<usize>,
    concurrency: usize,
    limit: usize,
    process: impl Fn(Vec<T>) -> F,
) {
    let (mut batch, mut in_flight) = (new_batch(), FuturesUnordered::new());
    loop {
        tokio::select! {
            count = poll_fn(|cx| receive(cx, &mut batch, limit)), if in_flight.len() < concurrency => {
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

/// As [`process_batches`], one at a time, of a queue that is closed when `stop` is cancelled: items
/// that are queued then are processed.
pub async fn process_until_stopped<T, F: Future<Output = ()>>(
    queue: &mut mpsc::Receiver<T>,
    limit: usize,
    stop: &CancellationToken,
    process: impl Fn(Vec<T>) -> F,
) {
    let mut stopped = pin!(stop.cancelled());
    let receive = |cx: &mut Context<'_>, batch: &mut Vec<T>, limit| {
        if stopped.as_mut().poll(cx).is_ready() {
            queue.close();
        }
        queue.poll_recv_many(cx, batch, limit)
    };
    process_batches(receive, 1, limit, process).await;
}

fn new_batch<T>() -> Vec<T> {
    Vec::with_capacity(INITIAL_BATCH_CAPACITY)
}

// === impl Submitter ===

impl<T, R> Submitter<T, R> {
    /// Submits an item and returns the reply. Returns `None` if the queue is full, if the
    /// receiver has ended or has dropped the item, or if there is no reply in time; then the item may
    /// be processed.
    pub async fn try_submit(&self, item: T, timeout: Duration) -> Option<R> {
        let (submission, reply) = Submission::new(item);
        self.queue.try_send(submission).ok()?;
        tokio::time::timeout(timeout, reply).await.ok()?.ok()
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
            let (submitter, mut queue) = queue::<u32, u32>(16);
            let processor = Self {
                sizes: Arc::default(),
                permits: Arc::new(Semaphore::new(0)),
            };
            let running = processor.clone();
            tokio::spawn(async move {
                let process = |batch| running.process(batch);
                let receive = |cx: &mut Context<'_>, batch: &mut Vec<_>, limit| {
                    queue.poll_recv_many(cx, batch, limit)
                };
                process_batches(receive, concurrency, limit, process).await;
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
            until(|| self.sizes.lock().len() >= batches).await;
            self.sizes.lock().clone()
        }
    }

    async fn until(is_done: impl Fn() -> bool) {
        let waiting = async {
            while !is_done() {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
        waited.expect("done in time");
    }

    fn submit(submitter: &Submitter<u32, u32>, item: u32) -> tokio::task::JoinHandle<u32> {
        let submitter = submitter.clone();
        let timeout = Duration::from_secs(10);
        tokio::spawn(async move { submitter.try_submit(item, timeout).await.expect("a reply") })
    }

    #[tokio::test]
    async fn items_that_arrive_during_a_batch_form_the_next() {
        let (processor, submitter) = Processor::start(1, 3);
        let mut replies = vec![submit(&submitter, 0)];
        assert_eq!(processor.until_started(1).await, [1]);
        replies.extend((1..=4).map(|item| submit(&submitter, item)));
        until(|| submitter.queue.capacity() == 12).await;
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
        until(|| submitter.queue.capacity() == 15).await;
        assert_eq!(processor.until_started(2).await, [1, 1], "the third waits");
        processor.permits.add_permits(1);
        assert_eq!(processor.until_started(3).await, [1, 1, 1]);
        processor.permits.add_permits(2);
        for reply in replies {
            reply.await.expect("no panic");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn full_queue_and_missing_reply_are_reported() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let (submitter, mut receiver) = queue::<u32, u32>(1);
        let waiting = submitter.try_submit(1, TIMEOUT);
        let started_at = tokio::time::Instant::now();
        let full = async {
            let reply = submitter.try_submit(2, TIMEOUT).await;
            (reply, started_at.elapsed())
        };
        let (late, full) = tokio::join!(waiting, full);
        assert_eq!((late, full), (None, (None, Duration::ZERO)));
        assert_eq!(started_at.elapsed(), TIMEOUT);
        let waiting = receiver.recv().await.expect("the first");
        assert_eq!((waiting.item, receiver.is_empty()), (1, true));
        waiting.reply.send(10);
        drop(receiver);
        assert_eq!(submitter.try_submit(3, TIMEOUT).await, None);
    }
}
