//! PostgreSQL: connections and row conversion. The SQL of the queue is in [`queue`], of the
//! suppression lists in [`suppression`], of the workers in [`worker`], and all other SQL in
//! [`history`].

mod history;
mod list;
mod pause;
mod queue;
mod retention;
mod suppression;
mod worker;

use std::time::Duration;

use postern_common::database::{PoolUsage, PostgresPool};

use super::read as rows;

/// The store in PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct Postgres {
    /// Connections for the queue, with planner settings of their own.
    queue: PostgresPool,
    /// The connections of the queue, for statements that a caller waits for.
    urgent: PostgresPool,
    /// Connections for all other statements.
    history: PostgresPool,
    /// The same connections, for statements over many rows.
    slow: PostgresPool,
}

/// Deadline of a statement of the dispatcher, which changes a few hundred rows.
const QUEUE_DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of a maintenance or command-line statement.
const SLOW_DEADLINE: Duration = Duration::from_secs(30);

/// The statistics of a table that is empty at one time and has a million rows soon afterwards
/// mislead the planner in both directions: these settings leave only the index path. A statement
/// that exceeds the timeout has lost its caller.
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
    /// Creates a store on an open pool. The connections of the queue use the same servers and
    /// credentials.
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

    /// Returns the use of the connections of the queue.
    pub(in crate::store) fn usage(&self) -> PoolUsage {
        self.queue.usage()
    }

    /// Closes the connections of the queue. The pool is closed by its owner.
    pub(in crate::store) async fn close(&self) {
        self.queue.close().await;
    }
}
