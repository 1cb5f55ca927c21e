//! Telling other replicas that rows were left waiting: one debounced signal, never in the
//! transaction that accepts. It is a courtesy: a replica that does not hear it finds the rows with
//! its next look.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Executor;
use sqlx::postgres::PgListener;
use uuid::Uuid;

use super::Board;
use crate::notification::{Channel, Lane, Order};
use crate::store::{Store, StoreError};

/// Tells the others.
#[derive(Debug)]
pub(crate) struct Voice {
    store: Store,
    board: Arc<Board>,
    name: u64,
}

/// Hears the others.
#[derive(Debug)]
pub(crate) struct Ear {
    listener: PgListener,
    board: Arc<Board>,
    name: u64,
}

/// At most so often: a NOTIFY takes a lock that all others wait for.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// How long after a failure the next try is made.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the connection may be silent before it is asked whether it is alive.
const QUIET: Duration = Duration::from_secs(5);
/// How long the answer to that may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What one replica tells: the lowest place in each lane where a row was left waiting.
type News = BTreeMap<i16, Order>;

// === impl Voice ===

impl Voice {
    /// Tells what the board notes, and hears what others tell. `None` over a store that has one
    /// process alone.
    #[must_use]
    pub(crate) fn new(store: Store, board: Arc<Board>) -> Option<Self> {
        store.is_shared().then(|| Self {
            store,
            board,
            name: Uuid::new_v4().as_u64_pair().0,
        })
    }

    /// The other side: hears everyone but this voice.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn ear(&self) -> Result<Option<Ear>, StoreError> {
        let listener = self.store.listen().await?;
        Ok(listener.map(|listener| Ear {
            listener,
            board: Arc::clone(&self.board),
            name: self.name,
        }))
    }

    /// Waits until something was left waiting, and tells it.
    ///
    /// # Errors
    /// The store's; nobody is told, and the others find it by themselves.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        self.tell(self.board.left_waiting().await).await
    }

    /// Tells what has not been told yet, before the process ends.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn last_word(&self) -> Result<(), StoreError> {
        let news = self.board.news.send_replace(News::new());
        if news.is_empty() {
            Ok(())
        } else {
            self.tell(news).await
        }
    }

    async fn tell(&self, news: News) -> Result<(), StoreError> {
        let text = serde_json::to_string(&(self.name, news)).unwrap_or_default();
        self.store.tell(&text).await
    }

    /// Tells until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let wait = match self.step().await {
                Ok(()) => DEBOUNCE,
                Err(error) => {
                    tracing::debug!(%error, "cannot wake the other replicas");
                    PAUSE
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Hears until it is dropped.
    pub(crate) async fn hear(self: Arc<Self>) {
        loop {
            if let Ok(Some(mut ear)) = self.ear().await {
                while ear.step().await.is_ok() {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

// === impl Ear ===

impl Ear {
    /// Waits for a signal and notes it on the board.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn step(&mut self) -> Result<(), StoreError> {
        let signal = match tokio::time::timeout(QUIET, self.listener.try_recv()).await {
            Ok(Ok(Some(signal))) => signal,
            Ok(Ok(None)) => return Err(sqlx::Error::Io(ErrorKind::ConnectionReset.into()).into()),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return self.ask().await,
        };
        // One that cannot be read is of a newer version: the next look finds what it meant.
        let Ok((name, news)) = serde_json::from_str::<(u64, News)>(signal.payload()) else {
            return Ok(());
        };
        let lanes = news
            .into_iter()
            .filter_map(|(code, order)| Some((Lane::from_code(code)?, order)));
        for (lane, order) in lanes.filter(|_| name != self.name) {
            self.board.desk(lane.channel).note_moved(lane, order);
        }
        Ok(())
    }

    /// Whether the connection is alive: one that is silent and one whose server has gone sound the
    /// same.
    async fn ask(&mut self) -> Result<(), StoreError> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.listener.execute("SELECT 1")).await;
        answer.unwrap_or_else(|_| Err(sqlx::Error::Io(ErrorKind::TimedOut.into())))?;
        Ok(())
    }
}

// === impl Board ===

impl Board {
    /// Rows were left waiting in a lane from this place on: this replica looks, and the others are
    /// told.
    pub(crate) fn leave_waiting(&self, lane: Lane, order: Order) {
        self.desk(lane.channel).mark_waiting(lane);
        self.tell(lane, order);
    }

    /// A row was moved to this place, maybe below what any replica has claimed already: all are
    /// told.
    pub(crate) fn note_moved(&self, lane: Lane, order: Order) {
        self.desk(lane.channel).note_moved(lane, order);
        self.tell(lane, order);
    }

    fn tell(&self, lane: Lane, order: Order) {
        self.news.send_modify(|news: &mut News| {
            news.entry(lane.code())
                .and_modify(|lowest| *lowest = order.min(*lowest))
                .or_insert(order);
        });
    }

    /// Waits until there is something to tell, and takes it.
    async fn left_waiting(&self) -> News {
        let mut news = self.news.subscribe();
        // The board holds the sender: it is never closed.
        let _ = news.wait_for(|news| !news.is_empty()).await;
        self.news.send_replace(News::new())
    }
}

/// Every lane fits into one signal: a payload has at most 8000 bytes.
const _: () = assert!(Channel::ALL.len() * Lane::PER_CHANNEL * 32 < 8000);
