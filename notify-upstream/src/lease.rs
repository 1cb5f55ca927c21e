use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::store::{Store, StoreError};

/// How often a worker says that it is alive.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// How often one looks who is dead.
const DEAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long one waits before a step that is in a expedite.
const EXPEDITED_STEP_DELAY: Duration = Duration::from_millis(250);
/// How long after its last word a worker is dead, and its rows are taken over.
pub(super) const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after its last word a worker begins nothing more: before others may begin the same.
const SELF_FENCE_AFTER: Duration = Duration::from_secs(7);
/// A dead worker that holds nothing is forgotten after this.
const DEAD_WORKER_RETENTION: Duration = Duration::from_secs(3600);

/// An identity under which rows are leased. Whoever works on such a row holds it.
#[derive(Debug)]
pub(crate) struct WorkerLease {
    id: i64,
    doubted: AtomicBool,
    lost: AtomicBool,
}

/// Whose lease_clock leases go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseClock {
    /// The store's, where several processes share it: their own clocks may differ by more than a
    /// lease is long.
    Store,
    /// Our own clock's, which a test moves by hand.
    #[cfg(test)]
    Local,
}

/// The identities of this process: one for new leases, and older ones that still hold rows.
///
/// When the answer to a claim or an accept is lost, rows may be leased to us that we do not know
/// of. Then the identity is doubted: a new one takes its place, the old one lives until its last
/// known row is done, and then dies, so that the unknown rows are rescued like any dead worker's.
#[derive(Debug)]
pub(crate) struct WorkerRegistry {
    store: Store,
    clock: Clock,
    lease_clock: LeaseClock,
    leases: Mutex<Vec<Arc<WorkerLease>>>,
    dead: Mutex<Arc<[i64]>>,
    /// Our last word: by our own clock, which counts the lease_clock that the machine sleeps, and
    /// by one that nobody can set back.
    last_renewal: Mutex<(Timestamp, Instant)>,
    /// Whether the store's tables are ones that this binary works on.
    is_schema_supported: AtomicBool,
    /// There is more to do than to renew.
    expedite: Notify,
}

// === impl WorkerLease ===

impl WorkerLease {
    fn new() -> Arc<Self> {
        let bytes = Uuid::new_v4().as_u64_pair().0 >> 1;
        let id = i64::try_from(bytes).unwrap_or(i64::MAX);
        Arc::new(Self {
            id,
            doubted: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        })
    }

    /// Its number in the store.
    #[must_use]
    pub(crate) fn id(&self) -> i64 {
        self.id
    }
}

// === impl WorkerRegistry ===

impl WorkerRegistry {
    /// Registers a first identity.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn start(
        store: Store,
        clock: Clock,
        lease_clock: LeaseClock,
    ) -> Result<Arc<Self>, StoreError> {
        let began = clock.now();
        let workers = Self {
            store,
            clock,
            lease_clock,
            leases: Mutex::default(),
            dead: Mutex::new(Arc::default()),
            last_renewal: Mutex::new((began, Instant::now())),
            is_schema_supported: AtomicBool::new(true),
            expedite: Notify::new(),
        };
        workers.replace(workers.lease_now().await?).await?;
        workers.refresh_dead().await?;
        Ok(Arc::new(workers))
    }

    /// What lease_clock it is for leases.
    async fn lease_now(&self) -> Result<Timestamp, StoreError> {
        match self.lease_clock {
            LeaseClock::Store => Ok(self
                .store
                .shared_now()
                .await?
                .unwrap_or_else(|| self.clock.now())),
            #[cfg(test)]
            LeaseClock::Local => Ok(self.clock.now()),
        }
    }

    /// The identity for new leases.
    #[must_use]
    pub(crate) fn current(&self) -> Arc<WorkerLease> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(
            leases
                .last()
                .expect("there is always an identity: the last is never removed"),
        )
    }

    /// Whose rows may be taken over.
    #[must_use]
    pub(crate) fn dead(&self) -> Arc<[i64]> {
        Arc::clone(&self.dead.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether our last word is fresh enough to begin something, on tables that we know.
    #[must_use]
    pub(crate) fn is_alive(&self) -> bool {
        let (at, instant) = *self
            .last_renewal
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let by_the_machine = match self.lease_clock {
            LeaseClock::Store => instant.elapsed(),
            #[cfg(test)]
            LeaseClock::Local => Duration::ZERO,
        };
        self.clock.now().since(at).max(by_the_machine) < SELF_FENCE_AFTER
            && self.is_schema_supported.load(Ordering::Relaxed)
    }

    /// Whether the store's tables are ones that this binary works on. While they are not, nothing
    /// is begun.
    pub(crate) fn set_schema_supported(&self, is_schema_supported: bool) {
        self.is_schema_supported
            .store(is_schema_supported, Ordering::Relaxed);
    }

    /// The answer to a claim or accept under this identity was lost, or a row of it could not be
    /// given back.
    pub(crate) fn doubt(&self, worker: &WorkerLease) {
        worker.doubted.store(true, Ordering::Relaxed);
        self.expedite.notify_one();
    }

    /// Whether what is leased under this identity is still ours to begin.
    #[must_use]
    pub(crate) fn holds(&self, worker: &WorkerLease) -> bool {
        self.is_alive() && !worker.lost.load(Ordering::Relaxed)
    }

    /// Renews every identity, replaces the one in doubt, and looks who is dead.
    ///
    /// # Errors
    /// The store's; the next step tries again.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        let began = (self.clock.now(), Instant::now());
        let now = self.lease_now().await?;
        if self.current().doubted.load(Ordering::Relaxed) {
            self.replace(now).await?;
        }
        let leases = self
            .leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let current = self.current().id;
        for worker in &leases {
            // One reference is ours, one the list's.
            if worker.id != current && Arc::strong_count(worker) <= 2 {
                self.store.retire_worker(worker.id, false).await?;
                self.leases
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|known| known.id != worker.id);
            } else if !self
                .store
                .renew_worker(worker.id, now, dead_before(now))
                .await?
            {
                tracing::warn!(worker = worker.id, "lease lost: others have taken over");
                worker.lost.store(true, Ordering::Relaxed);
                if worker.id == current {
                    self.replace(now).await?;
                }
            }
        }
        self.refresh_dead().await?;
        *self
            .last_renewal
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = began;
        Ok(())
    }

    /// Looks who is dead.
    async fn refresh_dead(&self) -> Result<(), StoreError> {
        let dead = self
            .store
            .dead_workers(dead_before(self.lease_now().await?))
            .await?;
        *self.dead.lock().unwrap_or_else(PoisonError::into_inner) = dead.into();
        Ok(())
    }

    async fn replace(&self, now: Timestamp) -> Result<(), StoreError> {
        let worker = WorkerLease::new();
        self.store.register_worker(worker.id, now).await?;
        self.leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(worker);
        Ok(())
    }

    /// Renews, and looks who is dead, until the stop. An identity in doubt is replaced, and one
    /// that a step has left over is given up, without waiting for the next renewal: what they hold
    /// without our knowing it waits for that.
    pub(crate) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(RENEW_INTERVAL);
        let mut refresh_dead = tokio::time::interval(DEAD_CHECK_INTERVAL);
        for tick in [&mut tick, &mut refresh_dead] {
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => self.step().await,
                () = self.expedite.notified() => {
                    tokio::time::sleep(EXPEDITED_STEP_DELAY).await;
                    self.step().await
                }
                _ = refresh_dead.tick() => self.refresh_dead().await,
            };
            if let Err(error) = &outcome {
                tracing::warn!(%error, "cannot renew the lease or see who is dead");
            }
            if outcome.is_err() || self.has_several() {
                self.expedite.notify_one();
            }
        }
    }

    fn has_several(&self) -> bool {
        self.leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
            > 1
    }

    /// Forgets who died long ago and holds nothing.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn forget_dead_workers(&self) -> Result<u64, StoreError> {
        let now = self.lease_now().await?;
        let long_ago =
            Timestamp(now.0 - i64::try_from(DEAD_WORKER_RETENTION.as_millis()).unwrap_or(0));
        self.store.delete_dead_workers(long_ago).await
    }

    /// Takes every identity off the list. Those that nobody holds hold no row.
    pub(crate) async fn retire_all(&self) {
        let leases =
            std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in &leases {
            let gone = Arc::strong_count(worker) == 1 && !worker.doubted.load(Ordering::Relaxed);
            if let Err(error) = self.store.retire_worker(worker.id, gone).await {
                tracing::warn!(%error, "cannot sign off; the lease ends by itself");
            }
        }
        // Whoever asks after this gets an identity that is not registered, and leases nothing.
        self.leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(WorkerLease::new());
        self.set_schema_supported(false);
    }
}

fn dead_before(now: Timestamp) -> Timestamp {
    Timestamp(now.0 - i64::try_from(LEASE_TIMEOUT.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, stores};

    #[tokio::test]
    async fn a_clock_that_is_set_back_keeps_nobody_alive() {
        for (store, _database) in stores().await {
            let clock = Clock::manual(START);
            let workers = WorkerRegistry::start(store, clock.clone(), LeaseClock::Store)
                .await
                .expect("registers");
            assert!(workers.is_alive());
            let silent = SELF_FENCE_AFTER + Duration::from_secs(1);
            let long_ago = Instant::now()
                .checked_sub(silent)
                .expect("the machine runs for longer");
            *workers.last_renewal.lock().expect("no panic") = (clock.now(), long_ago);
            assert!(!workers.is_alive(), "no time went by on the clock");
            workers.step().await.expect("renews");
            assert!(workers.is_alive());
            clock.advance(silent);
            assert!(!workers.is_alive(), "the machine has slept");
        }
    }
}
