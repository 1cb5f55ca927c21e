//! Worker leases: the identities under which this process claims rows, their renewal, and the
//! detection of dead workers. Depends on `store`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::store::{Store, StoreError};

/// Interval of lease renewal, which also finds dead workers.
const RENEW_INTERVAL: Duration = Duration::from_millis(2500);
const EXPEDITED_STEP_DELAYS: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_millis(250));
/// Time without renewal after which a worker is dead and its rows are taken over.
pub(super) const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without renewal after which a worker starts nothing more, so that it stops before another
/// worker starts the same row.
const SELF_FENCE_AFTER: Duration = Duration::from_secs(7);
/// Time after which a dead worker without rows is deleted.
const DEAD_WORKER_RETENTION: Duration = Duration::from_secs(3600);

/// A worker identity under which rows are leased. Each task that processes such a row holds a
/// reference.
#[derive(Debug)]
pub(crate) struct WorkerLease {
    /// The identifier in the store.
    pub(crate) id: i64,
    suspect: AtomicBool,
    lost: AtomicBool,
}

/// The clock that decides about leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseClock {
    /// The clock of the store, if several processes share it: their own clocks may differ by more
    /// than the lease timeout.
    Store,
    /// The local clock, which a test advances manually.
    #[cfg(test)]
    Local,
}

/// The worker identities of this process: the current one for new leases, and older ones that still
/// hold rows.
///
/// If the response to a claim is lost, rows may be leased to this process without its knowledge. The identity is then replaced: a new one takes new leases, the old one is
/// renewed until its last known row is completed, and then expires, so that the unknown rows are
/// recovered like those of any dead worker.
#[derive(Debug)]
pub(crate) struct WorkerRegistry {
    store: Store,
    clock: Clock,
    lease_clock: LeaseClock,
    leases: Mutex<Vec<Arc<WorkerLease>>>,
    dead: Mutex<Arc<[i64]>>,
    /// The time of the last renewal by the wall clock, which includes time in which the machine is
    /// suspended, and by the monotonic clock, which cannot be set back.
    last_renewal: Mutex<Option<(Timestamp, Instant)>>,
    /// Whether this binary supports the schema version of the store.
    is_schema_supported: AtomicBool,
    /// Requests a step before the next interval.
    expedite: Notify,
}

// === impl WorkerLease ===

impl WorkerLease {
    fn new() -> Arc<Self> {
        let bytes = Uuid::new_v4().as_u64_pair().0 >> 1;
        let id = i64::try_from(bytes).unwrap_or(i64::MAX);
        Arc::new(Self {
            id,
            suspect: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        })
    }
}

// === impl WorkerRegistry ===

impl WorkerRegistry {
    /// Creates a registry and registers the first identity. If that fails, because the disk of the
    /// database is full, no work is started before a later step has succeeded.
    pub(crate) async fn start(store: Store, clock: Clock, lease_clock: LeaseClock) -> Arc<Self> {
        let first = WorkerLease::new();
        first.suspect.store(true, Ordering::Relaxed);
        let workers = Self {
            store,
            clock,
            lease_clock,
            leases: Mutex::new(vec![first]),
            dead: Mutex::new(Arc::default()),
            last_renewal: Mutex::new(None),
            is_schema_supported: AtomicBool::new(true),
            expedite: Notify::new(),
        };
        if let Err(error) = workers.step().await {
            postern_core::log_outage!("database", %error, "lease renewal failed");
        }
        Arc::new(workers)
    }

    /// Returns the time for the leases; `None` is the clock of the store.
    fn lease_now(&self) -> Option<Timestamp> {
        match self.lease_clock {
            LeaseClock::Store => (!self.store.is_shared()).then(|| self.clock.now()),
            #[cfg(test)]
            LeaseClock::Local => Some(self.clock.now()),
        }
    }

    /// Returns the identity for new leases.
    pub(crate) fn current(&self) -> Arc<WorkerLease> {
        let leases = self.leases.lock();
        Arc::clone(leases.last().expect("the list has at least one identity"))
    }

    /// Returns the workers whose rows may be taken over.
    pub(crate) fn dead(&self) -> Arc<[i64]> {
        Arc::clone(&self.dead.lock())
    }

    /// Returns whether the last renewal is recent enough, and the schema supported, to start work.
    pub(crate) fn is_alive(&self) -> bool {
        let Some((at, instant)) = *self.last_renewal.lock() else {
            return false;
        };
        let by_the_machine = match self.lease_clock {
            LeaseClock::Store => instant.elapsed(),
            #[cfg(test)]
            LeaseClock::Local => Duration::ZERO,
        };
        self.clock.now().since(at).max(by_the_machine) < SELF_FENCE_AFTER
            && !self.clock.is_uncertain()
            && self.is_schema_supported.load(Ordering::Relaxed)
    }

    /// Sets whether this binary supports the schema version of the store. While it does not, no
    /// work is started.
    pub(crate) fn set_schema_supported(&self, is_schema_supported: bool) {
        self.is_schema_supported
            .store(is_schema_supported, Ordering::Relaxed);
    }

    /// Marks an identity for replacement: the response to a claim was lost, or one of its rows could
    /// not be released.
    pub(crate) fn mark_suspect(&self, worker: &WorkerLease) {
        worker.suspect.store(true, Ordering::Relaxed);
        self.expedite.notify_one();
    }

    /// Returns whether rows leased under this identity may still be started.
    pub(crate) fn may_start(&self, worker: &WorkerLease) -> bool {
        self.is_alive() && !worker.lost.load(Ordering::Relaxed)
    }

    /// Renews all identities, replaces a marked one, and refreshes the list of dead workers.
    ///
    /// # Errors
    /// The store is unavailable; the next step retries.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        let began = (self.clock.now(), Instant::now());
        if self.current().suspect.load(Ordering::Relaxed) {
            self.replace().await?;
        }
        let mut leases = self.leases.lock().clone();
        let current = self.current().id;
        // One reference is the list's, one is held by this function.
        let unused = leases.extract_if(.., |worker| {
            worker.id != current && Arc::strong_count(worker) <= 2
        });
        for worker in unused.collect::<Vec<_>>() {
            self.store.retire_worker(worker.id, false).await?;
            self.leases.lock().retain(|known| known.id != worker.id);
        }
        let renewed = self.renew(&leases).await?;
        for worker in leases.iter().filter(|held| !renewed.contains(&held.id)) {
            postern_core::log_outage!(
                "database",
                worker = worker.id,
                "lease lost, rows were taken over"
            );
            worker.lost.store(true, Ordering::Relaxed);
            if worker.id == current {
                self.replace().await?;
            }
        }
        *self.last_renewal.lock() = Some(began);
        Ok(())
    }

    /// Renews leases, returns those that were renewed, and refreshes the list of dead workers.
    async fn renew(&self, leases: &[Arc<WorkerLease>]) -> Result<Vec<i64>, StoreError> {
        let ids: Vec<i64> = leases.iter().map(|worker| worker.id).collect();
        let timeout_ms = i64::try_from(LEASE_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
        let (began, now) = (Instant::now(), self.lease_now());
        let renewal = self.store.renew_workers(&ids, now, timeout_ms).await?;
        if let Some(now) = renewal.now {
            self.clock.correct(now, began);
        }
        if **self.dead.lock() != *renewal.dead {
            *self.dead.lock() = renewal.dead.into();
        }
        Ok(renewal.renewed)
    }

    async fn replace(&self) -> Result<(), StoreError> {
        let worker = WorkerLease::new();
        self.store
            .register_worker(worker.id, self.lease_now())
            .await?;
        self.leases.lock().push(worker);
        Ok(())
    }

    /// Renews leases and refreshes the list of dead workers until shutdown. A marked identity is
    /// replaced, and one that holds no more rows is retired, without waiting for the next interval:
    /// the rows that it holds without the knowledge of this process wait for that.
    pub(crate) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(RENEW_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut delays = EXPEDITED_STEP_DELAYS.delays();
        loop {
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => self.step().await,
                () = self.expedite.notified() => {
                    delays.wait(&shutdown).await;
                    self.step().await
                }
            };
            if let Err(error) = &outcome {
                postern_core::log_outage!("database", %error, "lease renewal failed");
            }
            if outcome.is_err() || self.has_old_identities() {
                self.expedite.notify_one();
            } else {
                delays.reset();
            }
        }
    }

    fn has_old_identities(&self) -> bool {
        self.leases.lock().len() > 1
    }

    /// Deletes workers that have been dead for [`DEAD_WORKER_RETENTION`] and hold no rows, and
    /// returns their number.
    pub(crate) async fn delete_dead_workers(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let retention_ms = i64::try_from(DEAD_WORKER_RETENTION.as_millis()).unwrap_or(0);
        let long_ago = Timestamp(now.0 - retention_ms);
        self.store.delete_dead_workers(long_ago).await
    }

    /// Registers workers that hold rows without being registered, so that their rows are taken over.
    pub(crate) async fn register_holders(&self) -> Result<u64, StoreError> {
        self.store.register_holders(self.lease_now()).await
    }

    /// Retires all identities. Those without references hold no rows and are deleted.
    pub(crate) async fn retire_all(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        for worker in &leases {
            let gone = Arc::strong_count(worker) == 1 && !worker.suspect.load(Ordering::Relaxed);
            if let Err(error) = self.store.retire_worker(worker.id, gone).await {
                tracing::warn!(%error, "worker not retired, lease expires by itself");
            }
        }
        // Later callers get an identity that is not registered and takes no leases.
        self.leases.lock().push(WorkerLease::new());
        self.set_schema_supported(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, stores};

    #[tokio::test]
    async fn lease_expires_although_the_wall_clock_is_set_back() {
        for (store, _database) in stores().await {
            let clock = Clock::manual(START);
            let workers = WorkerRegistry::start(store, clock.clone(), LeaseClock::Store).await;
            assert!(workers.is_alive());
            let silent = SELF_FENCE_AFTER + Duration::from_secs(1);
            let long_ago = Instant::now()
                .checked_sub(silent)
                .expect("the machine has been up for longer");
            *workers.last_renewal.lock() = Some((clock.now(), long_ago));
            assert!(!workers.is_alive(), "no time went by on the clock");
            workers.step().await.expect("lease renewal succeeds");
            assert!(workers.is_alive());
            clock.advance(silent);
            assert!(!workers.is_alive(), "the machine has slept");
        }
    }
}
