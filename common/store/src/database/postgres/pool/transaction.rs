//! Transactions on a connection of the pool.

use std::time::Duration;

use sqlx::{Executor, PgConnection};
use tokio::time::timeout;

use super::PooledConnection;

/// A transaction. If it is dropped without a commit, its connection is closed, which rolls it back.
#[derive(Debug)]
pub struct PostgresTransaction {
    connection: PooledConnection,
    deadline: Duration,
}

impl PostgresTransaction {
    pub(super) fn new(connection: PooledConnection, deadline: Duration) -> Self {
        Self {
            connection,
            deadline,
        }
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// As any statement. After a timeout the transaction may have been committed.
    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        let ended = timeout(self.deadline, self.connection.execute("COMMIT")).await;
        self.connection.finish(ended, self.deadline).map(drop)
    }
}

impl std::ops::Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl std::ops::DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
