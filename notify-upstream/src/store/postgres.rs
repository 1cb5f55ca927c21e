//! PostgreSQL: connections and rows. All SQL of the queue stands in [`queue`], the lists of
//! addresses in [`suppression`], all other SQL in [`history`].

mod history;
mod queue;
mod suppression;
mod rows {
    super::super::read::row_readers!(sqlx::postgres::PgRow);
}

use std::time::Duration;

use postern_common::database::PostgresPool;

/// PostgreSQL.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// Connections of the queue, with planner settings of their own.
    queue: PostgresPool,
    /// The same connections for statements that a caller waits for.
    urgent: PostgresPool,
    /// Connections for everything else.
    history: PostgresPool,
    /// The same connections for statements that go over many rows.
    slow: PostgresPool,
}

/// How long a statement of the dispatcher may take: it changes up to some hundred rows.
const QUEUE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a statement of housekeeping or of an operator's tool may take.
const SLOW_DEADLINE: Duration = Duration::from_secs(30);

/// Statistics of a table that is empty one moment and holds a million rows the next mislead the
/// planner either way: these leave it only the index path. A statement that has not ended by then
/// has lost its caller.
const QUEUE_SETTINGS: [(&str, &str); 9] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_memoize", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("statement_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

// === impl Postgres ===

impl Postgres {
    /// Over an open pool, whose servers and credentials the queue's own connections take over.
    #[must_use]
    pub(crate) fn new(pool: PostgresPool, queue_connections: u32) -> Self {
        let queue = pool.separate(queue_connections, &QUEUE_SETTINGS, QUEUE_DEADLINE);
        let urgent = queue.with_deadline(pool.deadline());
        let slow = pool.with_deadline(SLOW_DEADLINE);
        Self {
            queue,
            urgent,
            history: pool,
            slow,
        }
    }

    /// Closes the queue's connections; those of the pool are closed by whoever opened it.
    pub(in crate::store) async fn close(&self) {
        self.queue.close().await;
    }
}
