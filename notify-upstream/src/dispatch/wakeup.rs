//! Telling other replicas that rows were left waiting: one debounced signal, never in the
//! transaction that accepts. It is a courtesy: a replica that does not listen it finds the rows
//! with its next look.

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

/// Tells the others.
#[derive(Debug)]
pub(crate) struct WakeupPublisher {
    store: Store,
    dispatch_state: Arc<DispatchState>,
    origin: u64,
}

/// Hears the others.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    listener: PgListener,
    dispatch_state: Arc<DispatchState>,
    origin: u64,
}

/// At most so often: a NOTIFY takes a lock that all others wait for.
const MIN_PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// How long after a failure the next try is made.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// How long the connection may be silent before it is asked whether it is alive.
const IDLE_CHECK_AFTER: Duration = Duration::from_secs(5);
/// How long the answer to that may take.
const IDLE_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// What one replica tells: the lowest place in each lane where a row was left waiting.
type PendingWakeups = BTreeMap<i16, Order>;

// === impl WakeupPublisher ===

impl WakeupPublisher {
    /// Tells what the dispatch_state notes, and hears what others publish. `None` over a store that
    /// has one process alone.
    #[must_use]
    pub(crate) fn new(store: Store, dispatch_state: Arc<DispatchState>) -> Option<Self> {
        store.is_shared().then(|| Self {
            store,
            dispatch_state,
            origin: Uuid::new_v4().as_u64_pair().0,
        })
    }

    /// The other side: hears everyone but this voice.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn listener(&self) -> Result<Option<WakeupListener>, StoreError> {
        let listener = self.store.listen().await?;
        Ok(listener.map(|listener| WakeupListener {
            listener,
            dispatch_state: Arc::clone(&self.dispatch_state),
            origin: self.origin,
        }))
    }

    /// Waits until something was left waiting, and tells it.
    ///
    /// # Errors
    /// The store's; nobody is told, and the others find it by themselves.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        self.publish(self.dispatch_state.take_pending().await).await
    }

    /// Tells what has not been told yet, before the process ends.
    ///
    /// # Errors
    /// The store's.
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

    /// Tells until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let wait = match self.step().await {
                Ok(()) => MIN_PUBLISH_INTERVAL,
                Err(error) => {
                    tracing::debug!(%error, "cannot wake the other replicas");
                    RECONNECT_DELAY
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Hears until it is dropped.
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
    /// Waits for a signal and notes it on the dispatch_state.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn step(&mut self) -> Result<(), StoreError> {
        let signal = match tokio::time::timeout(IDLE_CHECK_AFTER, self.listener.try_recv()).await {
            Ok(Ok(Some(signal))) => signal,
            Ok(Ok(None)) => return Err(sqlx::Error::Io(ErrorKind::ConnectionReset.into()).into()),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return self.check_connection().await,
        };
        // One that cannot be read is of a newer version: the next look finds what it meant.
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
                .note_moved(lane, order);
        }
        Ok(())
    }

    /// Whether the connection is alive: one that is silent and one whose server has gone sound the
    /// same.
    async fn check_connection(&mut self) -> Result<(), StoreError> {
        let answer =
            tokio::time::timeout(IDLE_CHECK_TIMEOUT, self.listener.execute("SELECT 1")).await;
        answer.unwrap_or_else(|_| Err(sqlx::Error::Io(ErrorKind::TimedOut.into())))?;
        Ok(())
    }
}

// === impl DispatchState ===

impl DispatchState {
    /// Rows were left waiting in a lane from this place on: this replica looks, and the others are
    /// told.
    pub(crate) fn leave_waiting(&self, lane: Lane, order: Order) {
        self.channel(lane.channel).mark_waiting(lane);
        self.publish(lane, order);
    }

    /// A row was moved to this place, maybe below what any replica has claimed already: all are
    /// told.
    pub(crate) fn note_moved(&self, lane: Lane, order: Order) {
        self.channel(lane.channel).note_moved(lane, order);
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

    /// Waits until there is something to publish, and takes it.
    async fn take_pending(&self) -> PendingWakeups {
        let mut pending = self.pending_wakeups.subscribe();
        // The dispatch_state holds the sender: it is never closed.
        let _ = pending.wait_for(|pending| !pending.is_empty()).await;
        self.pending_wakeups.send_replace(PendingWakeups::new())
    }
}

/// Every lane fits into one signal: a payload has at most 8000 bytes.
const _: () = assert!(Channel::ALL.len() * Lane::PER_CHANNEL * 32 < 8000);
