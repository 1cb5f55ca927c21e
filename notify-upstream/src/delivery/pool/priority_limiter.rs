use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::ProviderRate;
use crate::notification::Priority;

/// Lets calls through to one provider: so many at once, and so many a second where the provider has
/// a rate. Who goes next is decided only when a call can be made: the most urgent of those that
/// wait, and of those the first that came.
#[derive(Debug)]
pub(crate) struct PriorityLimiter {
    slots: Arc<Semaphore>,
    rate: Option<ProviderRate>,
    waiting: Mutex<[VecDeque<oneshot::Sender<CallSlot>>; Priority::ALL.len()]>,
    /// Told when something urgent has come to wait.
    urgent: Notify,
    /// Held by the one of those that wait that waits for the next slot and the next turn, for
    /// whoever gets them.
    dispatcher: tokio::sync::Mutex<()>,
}

/// The right to make one call; dropped when the call is over.
pub(crate) type CallSlot = OwnedSemaphorePermit;

/// What need not wait for a call that is due a moment later.
const URGENT: [Priority; 2] = [Priority::Critical, Priority::High];

// === impl PriorityLimiter ===

impl PriorityLimiter {
    /// So many calls at once, and a second.
    #[must_use]
    pub(crate) fn new(at_once: usize, rate: Option<ProviderRate>) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(at_once)),
            rate,
            waiting: Mutex::default(),
            urgent: Notify::new(),
            dispatcher: tokio::sync::Mutex::default(),
        }
    }

    /// Returns when a call of this priority may be made.
    pub(crate) async fn acquire(&self, priority: Priority) -> CallSlot {
        let mut turn = match self.try_acquire_or_enqueue(priority) {
            Ok(slot) => return slot,
            Err(turn) => turn,
        };
        let _usher = tokio::select! {
            biased;
            Ok(slot) = &mut turn => return slot,
            dispatcher = self.dispatcher.lock() => dispatcher,
        };
        loop {
            if let Ok(slot) = turn.try_recv() {
                return slot;
            }
            self.serve_next().await;
        }
    }

    /// At once where nobody waits and the provider has no rate; else the place in the queue.
    fn try_acquire_or_enqueue(
        &self,
        priority: Priority,
    ) -> Result<CallSlot, oneshot::Receiver<CallSlot>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.rate.is_none()
            && waiting.iter().all(VecDeque::is_empty)
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            return Ok(slot);
        }
        let (call, turn) = oneshot::channel();
        waiting[priority.index()].push_back(call);
        if URGENT.contains(&priority) {
            self.urgent.notify_one();
        }
        Err(turn)
    }

    fn has_urgent(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        URGENT
            .iter()
            .any(|priority| !waiting[priority.index()].is_empty())
    }

    /// Waits until a call can be made, and gives the right to it to whoever comes first by then.
    async fn serve_next(&self) {
        let free = Arc::clone(&self.slots).acquire_owned().await;
        let mut slot = free.expect("it is never closed");
        if let Some(rate) = &self.rate {
            while !rate.try_acquire(self.has_urgent()).await {
                tokio::select! {
                    () = rate.next_slice() => {}
                    () = self.urgent.notified() => {}
                }
            }
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(next) = waiting.iter_mut().find_map(VecDeque::pop_front) {
            match next.send(slot) {
                Ok(()) => break,
                // Whoever it was has gone away.
                Err(back) => slot = back,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use postern_common::Clock;
    use postern_common::cache::Cache;
    use postern_common::clock::Timestamp;

    use super::*;

    /// Callers of these priorities, in this order, all waiting.
    fn callers(
        limiter: &Arc<PriorityLimiter>,
        priorities: &[Priority],
    ) -> Vec<tokio::task::JoinHandle<CallSlot>> {
        let call = |priority: &Priority| {
            let (limiter, priority) = (Arc::clone(limiter), *priority);
            tokio::spawn(async move { limiter.acquire(priority).await })
        };
        priorities.iter().map(call).collect()
    }

    async fn idle() {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_slot_goes_to_the_most_urgent_that_waits_and_then_to_the_first() {
        use Priority::{Critical, High, Low};
        let limiter = Arc::new(PriorityLimiter::new(1, None));
        let mut pass = limiter.acquire(Low).now_or_never().expect("a free slot");
        let mut waiting = callers(&limiter, &[Low, Low, High, Low, Critical, High]);
        idle().await;
        for next in [4, 2, 5, 0, 1, 3] {
            assert!(waiting.iter().all(|caller| !caller.is_finished()));
            drop(pass);
            idle().await;
            let order: Vec<_> = (0..6).filter(|at| waiting[*at].is_finished()).collect();
            assert_eq!(order, [next]);
            let caller =
                std::mem::replace(&mut waiting[next], tokio::spawn(std::future::pending()));
            pass = caller.await.expect("no panic");
        }
    }

    #[tokio::test]
    async fn who_goes_away_keeps_nobody_waiting() {
        let limiter = Arc::new(PriorityLimiter::new(1, None));
        let pass = limiter.acquire(Priority::Low).await;
        let waiting = callers(
            &limiter,
            &[Priority::Critical, Priority::Critical, Priority::Low],
        );
        idle().await;
        // The first of them is the one that waits for the next slot.
        waiting[0].abort();
        waiting[1].abort();
        idle().await;
        drop(pass);
        idle().await;
        assert!(waiting[2].is_finished());
    }

    #[tokio::test]
    async fn what_is_urgent_has_the_next_call_of_a_rate_before_all_that_wait() {
        let clock = Clock::manual(Timestamp(0));
        let rate = ProviderRate::new(Cache::memory(clock.clone()), clock.clone(), "smtp", 100);
        let limiter = Arc::new(PriorityLimiter::new(8, Some(rate)));
        let low = callers(&limiter, &[Priority::Low; 4]);
        idle().await;
        let passed = |callers: &[tokio::task::JoinHandle<CallSlot>]| {
            callers.iter().filter(|caller| caller.is_finished()).count()
        };
        assert_eq!(passed(&low), 2, "the calls of this fiftieth of a second");
        let critical = callers(&limiter, &[Priority::Critical]);
        idle().await;
        assert_eq!((passed(&low), passed(&critical)), (2, 1));
    }
}
