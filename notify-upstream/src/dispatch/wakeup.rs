//! Wake-ups between replicas over `LISTEN`/`NOTIFY`: a replica has stored rows and left them
//! waiting. Signals are debounced and never part of the transaction that accepts. A replica that
//! misses one finds the rows with its next poll: within a second if it knows that its connection is
//! lost, and otherwise within [`IDLE_POLL_INTERVAL`](super::IDLE_POLL_INTERVAL).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Executor;
use sqlx::postgres::PgListener;
use uuid::Uuid;

use super::DispatchState;
use crate::lease::WorkerRegistry;
use crate::notification::{Channel, Lane};
use crate::store::{ReplicaSignal, Store, StoreError};

/// Publishes wake-ups to the other replicas.
#[derive(Debug)]
pub(crate) struct WakeupPublisher {
    store: Store,
    dispatch_state: Arc<DispatchState>,
    origin: u64,
}

/// Receives the wake-ups of the other replicas.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    listener: PgListener,
    dispatch_state: Arc<DispatchState>,
    origin: u64,
}

/// Minimum time between two signals of a replica, for each [`REPLICAS_PER_INTERVAL`] replicas:
/// `NOTIFY` takes a lock that is exclusive in the whole cluster, and each signal goes to every
/// replica. All replicas together send at most 200 signals per second.
const MIN_PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// See [`MIN_PUBLISH_INTERVAL`].
const REPLICAS_PER_INTERVAL: u32 = 4;
/// Delay after a failure.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Time without a signal after which the connection is checked.
const IDLE_CHECK_AFTER: Duration = Duration::from_secs(10);
/// Timeout of the connection check.
const IDLE_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The content of a signal: the codes of lanes in which rows wait, or of a [`ReplicaSignal`].
type PendingWakeups = BTreeSet<i16>;

// === impl WakeupPublisher ===

impl WakeupPublisher {
    /// Creates a publisher and receiver, or `None` if the store belongs to a single process.
    pub(crate) fn new(store: Store, dispatch_state: Arc<DispatchState>) -> Option<Self> {
        store.is_shared().then(|| Self {
            store,
            dispatch_state,
            origin: Uuid::new_v4().as_u64_pair().0,
        })
    }

    /// Opens a listener for the signals of other replicas.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn listener(&self) -> Result<Option<WakeupListener>, StoreError> {
        let listener = self.store.listen().await?;
        Ok(listener.map(|listener| WakeupListener {
            listener,
            dispatch_state: Arc::clone(&self.dispatch_state),
            origin: self.origin,
        }))
    }

    /// Waits for pending wake-ups and publishes them.
    ///
    /// # Errors
    /// The store is unavailable. The wake-ups are pending again.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        let pending = self.dispatch_state.take_pending().await;
        let outcome = self.publish(&pending).await;
        if outcome.is_err() {
            self.dispatch_state.add_pending(pending);
        }
        outcome
    }

    /// Publishes all wake-ups before the process ends, when no dispatcher runs any more.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        for channel in Channel::ALL {
            self.dispatch_state.announce_waiting(channel);
        }
        let pending = self
            .dispatch_state
            .pending_wakeups
            .send_replace(PendingWakeups::new());
        if pending.is_empty() {
            Ok(())
        } else {
            self.publish(&pending).await
        }
    }

    async fn publish(&self, pending: &PendingWakeups) -> Result<(), StoreError> {
        let text = serde_json::to_string(&(self.origin, pending)).unwrap_or_default();
        self.store.publish(&text).await
    }

    /// Publishes wake-ups until dropped.
    pub(crate) async fn run(self: Arc<Self>, workers: Arc<WorkerRegistry>) {
        loop {
            let wait = match self.step().await {
                Ok(()) => publish_interval(workers.live()),
                Err(error) => {
                    tracing::debug!(%error, "wake-up of other replicas failed");
                    RECONNECT_DELAY
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Receives wake-ups until dropped.
    pub(crate) async fn listen(self: Arc<Self>) {
        loop {
            if let Ok(Some(mut listener)) = self.listener().await {
                self.dispatch_state.replica().set_listening(true);
                // Changes that were announced while there was no connection.
                self.dispatch_state.replica().set_suppression_changed();
                self.dispatch_state.replica().set_pauses_changed();
                while listener.step().await.is_ok() {}
                self.dispatch_state.replica().set_listening(false);
            }
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }
}

// === impl WakeupListener ===

impl WakeupListener {
    /// Waits for a signal and records it in the dispatch state.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) async fn step(&mut self) -> Result<(), StoreError> {
        let signal = match tokio::time::timeout(IDLE_CHECK_AFTER, self.listener.try_recv()).await {
            Ok(Ok(Some(signal))) => signal,
            Ok(Ok(None)) => return Err(sqlx::Error::Io(ErrorKind::ConnectionReset.into()).into()),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return self.check_connection().await,
        };
        // A payload of a newer version is ignored: the next poll finds the rows.
        let Ok((origin, pending)) = serde_json::from_str::<(u64, PendingWakeups)>(signal.payload())
        else {
            return Ok(());
        };
        for code in pending {
            match Lane::from_code(code) {
                Some(lane) if origin != self.origin => {
                    let channel = self.dispatch_state.channel(lane.channel);
                    channel.mark_waiting(lane);
                }
                Some(_) => {}
                None => self.apply_signal(code),
            }
        }
        Ok(())
    }

    /// Applies a change that the store has announced. One of a newer version is ignored.
    fn apply_signal(&self, code: i16) {
        match ReplicaSignal::from_code(code) {
            Some(ReplicaSignal::SuppressionChanged) => {
                self.dispatch_state.replica().set_suppression_changed();
            }
            Some(ReplicaSignal::PausesChanged) => {
                self.dispatch_state.replica().set_pauses_changed();
            }
            Some(ReplicaSignal::RowsQueued) => {
                for channel in Channel::ALL {
                    self.dispatch_state.channel(channel).mark_all_waiting();
                }
            }
            None => {}
        }
    }

    /// Checks the connection: an idle one cannot be told from one whose server is unreachable.
    async fn check_connection(&mut self) -> Result<(), StoreError> {
        let answer =
            tokio::time::timeout(IDLE_CHECK_TIMEOUT, self.listener.execute("SELECT 1")).await;
        answer.unwrap_or_else(|_| Err(sqlx::Error::Io(ErrorKind::TimedOut.into())))?;
        Ok(())
    }
}

// === impl DispatchState ===

impl DispatchState {
    /// Announces the rows of a channel that this process has stored and not claimed to the other
    /// replicas.
    pub(super) fn announce_waiting(&self, channel: Channel) {
        let state = self.channel(channel);
        let lanes = Lane::of(channel).into_iter();
        let lanes = lanes.filter(|lane| state.take_unannounced(*lane));
        let codes: PendingWakeups = lanes.map(Lane::code).collect();
        if !codes.is_empty() {
            self.add_pending(codes);
        }
    }

    fn add_pending(&self, codes: PendingWakeups) {
        self.pending_wakeups
            .send_modify(|pending: &mut PendingWakeups| pending.extend(codes));
    }

    /// Waits for pending wake-ups and takes them.
    async fn take_pending(&self) -> PendingWakeups {
        let mut pending = self.pending_wakeups.subscribe();
        // The dispatch state holds the sender, so the channel is never closed.
        let _ = pending.wait_for(|pending| !pending.is_empty()).await;
        self.pending_wakeups.send_replace(PendingWakeups::new())
    }
}

/// Returns the minimum time between two signals of one of so many replicas.
fn publish_interval(replicas: u32) -> Duration {
    MIN_PUBLISH_INTERVAL * replicas.div_ceil(REPLICAS_PER_INTERVAL).max(1)
}

/// All lanes fit into one signal: a payload has less than 8000 bytes.
const _: () = assert!(Channel::ALL.len() * Lane::PER_CHANNEL * 7 < 7900);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_all_replicas_are_bounded() {
        assert_eq!(publish_interval(1), MIN_PUBLISH_INTERVAL);
        assert_eq!(publish_interval(4), MIN_PUBLISH_INTERVAL);
        for replicas in [5, 50, 500] {
            let per_second = f64::from(replicas) / publish_interval(replicas).as_secs_f64();
            assert!(per_second <= 200.0, "{replicas}: {per_second}");
        }
    }
}
