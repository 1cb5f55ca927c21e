//! Wake-ups between replicas over `LISTEN`/`NOTIFY`: rows were left waiting. Signals are debounced
//! and never part of the transaction that accepts. They are an optimization: a replica that misses
//! one finds the rows with its next scan.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Executor;
use sqlx::postgres::PgListener;
use uuid::Uuid;

use super::DispatchState;
use crate::notification::{Channel, Lane, Order};
use crate::store::{Store, StoreError};

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

/// Minimum time between two signals: `NOTIFY` takes a lock that is exclusive in the whole cluster.
const MIN_PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// Delay after a failure.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Time without a signal after which the connection is checked.
const IDLE_CHECK_AFTER: Duration = Duration::from_secs(5);
/// Timeout of the connection check.
const IDLE_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The content of a signal: the lowest order of a waiting row, by lane code.
type PendingWakeups = BTreeMap<i16, Order>;

// === impl WakeupPublisher ===

impl WakeupPublisher {
    /// Creates a publisher and receiver, or `None` if the store belongs to a single process.
    #[must_use]
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
    /// The store is unavailable. The wake-ups are lost; other replicas find the rows with their
    /// next scan.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        self.publish(self.dispatch_state.take_pending().await).await
    }

    /// Publishes pending wake-ups before the process ends.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let pending = self
            .dispatch_state
            .pending_wakeups
            .send_replace(PendingWakeups::new());
        if pending.is_empty() {
            Ok(())
        } else {
            self.publish(pending).await
        }
    }

    async fn publish(&self, pending: PendingWakeups) -> Result<(), StoreError> {
        let text = serde_json::to_string(&(self.origin, pending)).unwrap_or_default();
        self.store.publish(&text).await
    }

    /// Publishes wake-ups until dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let wait = match self.step().await {
                Ok(()) => MIN_PUBLISH_INTERVAL,
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
                while listener.step().await.is_ok() {}
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
        // A payload of a newer version is ignored: the next scan finds the rows.
        let Ok((origin, pending)) = serde_json::from_str::<(u64, PendingWakeups)>(signal.payload())
        else {
            return Ok(());
        };
        let lanes = pending
            .into_iter()
            .filter_map(|(code, order)| Some((Lane::from_code(code)?, order)));
        for (lane, order) in lanes.filter(|_| origin != self.origin) {
            self.dispatch_state
                .channel(lane.channel)
                .record_moved(lane, order);
        }
        Ok(())
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
    /// Records that rows were left waiting from `order` on: wakes the local dispatcher, and the
    /// other replicas.
    pub(crate) fn record_waiting(&self, lane: Lane, order: Order) {
        self.channel(lane.channel).mark_waiting(lane);
        self.publish(lane, order);
    }

    /// Records that a row was moved to `order`, possibly below the cursors of all replicas, and
    /// wakes them.
    pub(crate) fn record_moved(&self, lane: Lane, order: Order) {
        self.channel(lane.channel).record_moved(lane, order);
        self.publish(lane, order);
    }

    fn publish(&self, lane: Lane, order: Order) {
        self.pending_wakeups
            .send_modify(|pending: &mut PendingWakeups| {
                pending
                    .entry(lane.code())
                    .and_modify(|lowest| *lowest = order.min(*lowest))
                    .or_insert(order);
            });
    }

    /// Waits for pending wake-ups and takes them.
    async fn take_pending(&self) -> PendingWakeups {
        let mut pending = self.pending_wakeups.subscribe();
        // The dispatch state holds the sender, so the channel is never closed.
        let _ = pending.wait_for(|pending| !pending.is_empty()).await;
        self.pending_wakeups.send_replace(PendingWakeups::new())
    }
}

/// All lanes fit into one signal: a payload has less than 8000 bytes.
const _: () = assert!(Channel::ALL.len() * Lane::PER_CHANNEL * 32 < 8000);
