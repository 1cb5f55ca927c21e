//! PostgreSQL: connections and rows. All SQL of the queue stands in [`queue`], the lists of
//! addresses in [`suppression`], all other SQL in [`history`].

mod history;
mod queue;
mod suppression;
mod rows {
    super::super::read::row_readers!(sqlx::postgres::PgRow);
}

use std::time::Duration;

use postern_common::database::is_usable;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// PostgreSQL.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// Connections of the queue, with planner settings of their own.
    queue: PgPool,
    /// Connections for everything else.
    history: PgPool,
}

/// Statistics of a table that is empty one moment and holds a million rows the next mislead the planner either way:
/// these leave it only the index path. A statement that has not ended by then has lost its caller.
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
    /// Over an open pool, whose address and credentials the queue's own connections take over.
    #[must_use]
    pub fn new(pool: PgPool, queue_connections: u32) -> Self {
        let options: PgConnectOptions = (*pool.connect_options()).clone();
        let queue = PgPoolOptions::new()
            .max_connections(queue_connections)
            .acquire_timeout(Duration::from_secs(2))
            .test_before_acquire(false)
            // After a restart of the server each dead one would cost a statement, and the identity that it was for.
            .before_acquire(|connection, meta| {
                Box::pin(async move { Ok(is_usable(connection, &meta).await) })
            })
            .connect_lazy_with(options.options(QUEUE_SETTINGS));
        Self { queue, history: pool }
    }
}
