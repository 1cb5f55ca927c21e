//! Concurrency and rate limits of a provider, in order of priority.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::backoff::random_fraction;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::ProviderRate;
use crate::notification::Priority;

/// Limits concurrent calls, and calls per second, to one provider. When a call becomes possible,
/// the waiting call of the highest priority proceeds; within a priority, the first of a service, or
/// one time in four the first of a user.
pub(crate) struct PriorityLimiter {
    slots: Arc<Semaphore>,
    rate: Option<ProviderRate>,
    waiting: Mutex<WaitingCalls>,
    /// Notified when a CRITICAL or HIGH call starts to wait.
    urgent: Notify,
    /// Held by the one waiting call that waits for the next slot on behalf of all.
    dispatcher: tokio::sync::Mutex<()>,
}

/// The calls that wait, by the position of their priority: of services, and of users.
type WaitingCalls = [[VecDeque<oneshot::Sender<CallSlot>>; 2]; Priority::ALL.len()];

/// The permit for one concurrent call, held until the call ends.
pub(crate) type CallSlot = OwnedSemaphorePermit;

/// The part of the slots for which users are first, so that services cannot keep them waiting.
const USER_PART: f64 = 0.25;

impl PriorityLimiter {
    pub(crate) fn new(at_once: usize, rate: Option<ProviderRate>) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(at_once)),
            rate,
            waiting: Mutex::default(),
            urgent: Notify::new(),
            dispatcher: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until a call of this priority may be made.
    pub(crate) async fn acquire(&self, priority: Priority, is_user: bool) -> CallSlot {
        let mut slot_receiver = match self.try_acquire_or_enqueue(priority, is_user) {
            Ok(slot) => return slot,
            Err(slot_receiver) => slot_receiver,
        };
        let _usher = tokio::select! {
            biased;
            Ok(slot) = &mut slot_receiver => return slot,
            dispatcher = self.dispatcher.lock() => dispatcher,
        };
        loop {
            if let Ok(slot) = slot_receiver.try_recv() {
                return slot;
            }
            self.serve_next().await;
        }
    }

    /// Returns a slot if no call is waiting and the provider has no rate limit; otherwise a place
    /// in the queue.
    fn try_acquire_or_enqueue(
        &self,
        priority: Priority,
        is_user: bool,
    ) -> Result<CallSlot, oneshot::Receiver<CallSlot>> {
        let mut waiting = self.waiting.lock();
        if self.rate.is_none()
            && waiting.as_flattened().iter().all(VecDeque::is_empty)
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            return Ok(slot);
        }
        let (call, slot_receiver) = oneshot::channel();
        waiting[priority.index()][usize::from(is_user)].push_back(call);
        if priority.is_urgent() {
            self.urgent.notify_one();
        }
        Err(slot_receiver)
    }

    /// Returns whether a call waits that may be made ahead of the pace.
    fn has_urgent(&self) -> bool {
        let waiting = self.waiting.lock();
        let mut calls = Priority::ALL.iter().zip(&*waiting);
        calls.any(|(priority, calls)| priority.is_urgent() && !calls.iter().all(VecDeque::is_empty))
    }

    /// Waits for a slot and for the rate limit, and passes the slot to the waiting call of the
    /// highest priority.
    async fn serve_next(&self) {
        let free = Arc::clone(&self.slots).acquire_owned().await;
        let mut slot = free.expect("the semaphore is never closed");
        if let Some(rate) = &self.rate {
            rate.reserve().await;
            while let Err(wait) = rate.try_use(self.has_urgent()) {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.urgent.notified() => {}
                }
            }
        }
        let mut waiting = self.waiting.lock();
        let is_user_turn = random_fraction() < USER_PART;
        let mut next = || {
            waiting.iter_mut().find_map(|[services, users]| {
                let order = if is_user_turn {
                    [users, services]
                } else {
                    [services, users]
                };
                order.into_iter().find_map(VecDeque::pop_front)
            })
        };
        while let Some(next) = next() {
            match next.send(slot) {
                Ok(()) => break,
                // The receiver was cancelled.
                Err(returned) => slot = returned,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use postern_core::Clock;
    use postern_core::clock::Timestamp;
    use postern_store::cache::Cache;

    use super::*;

    /// Starts calls of these priorities in this order, all of which wait.
    fn callers(
        limiter: &Arc<PriorityLimiter>,
        priorities: &[Priority],
    ) -> Vec<tokio::task::JoinHandle<CallSlot>> {
        let call = |priority: &Priority| {
            let (limiter, priority) = (Arc::clone(limiter), *priority);
            tokio::spawn(async move { limiter.acquire(priority, false).await })
        };
        priorities.iter().map(call).collect()
    }

    async fn idle() {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn services_are_first_three_times_in_four() {
        let limiter = PriorityLimiter::new(1, None);
        let held = limiter.acquire(Priority::Normal, false).await;
        let mut waiting = Vec::from_iter((0..400).map(|n| {
            let slot = limiter.try_acquire_or_enqueue(Priority::Normal, n < 200);
            slot.expect_err("all are used")
        }));
        drop(held);
        let mut users = 0;
        for _ in 0..200 {
            limiter.serve_next().await;
            let served = waiting.iter_mut().position(|slot| slot.try_recv().is_ok());
            users += usize::from(served < Some(200));
        }
        assert!((20..=80).contains(&users), "{users} of 200");
    }

    #[tokio::test]
    async fn cancelled_call_does_not_block_others() {
        let limiter = Arc::new(PriorityLimiter::new(1, None));
        let pass = limiter.acquire(Priority::Low, false).await;
        let waiting = callers(
            &limiter,
            &[Priority::Critical, Priority::Critical, Priority::Low],
        );
        idle().await;
        // The first caller is the one that waits for the next slot.
        waiting[0].abort();
        waiting[1].abort();
        idle().await;
        drop(pass);
        idle().await;
        assert!(waiting[2].is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_call_borrows_from_the_rate_limit_before_others() {
        let cache = Cache::memory(Clock::manual(Timestamp(0)));
        let rate = ProviderRate::new(cache, "smtp", 100);
        let limiter = Arc::new(PriorityLimiter::new(8, Some(rate)));
        let low = callers(&limiter, &[Priority::Low; 4]);
        idle().await;
        let passed = |callers: &[tokio::task::JoinHandle<CallSlot>]| {
            callers.iter().filter(|caller| caller.is_finished()).count()
        };
        assert_eq!(passed(&low), 3, "calls of 20 ms");
        let critical = callers(&limiter, &[Priority::Critical]);
        idle().await;
        assert_eq!((passed(&low), passed(&critical)), (3, 1));
    }
}
