//! `LISTEN` on a dedicated connection outside the pool, because it is idle for hours.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use super::error::timeout_error;

/// Opens a listener that does not reconnect by itself. After a failure, the caller asks the pool
/// for a new one, which finds the server that accepts writes.
pub(super) async fn open(
    options: PgConnectOptions,
    setup: String,
    channel: &str,
    limit: Duration,
) -> Result<PgListener, sqlx::Error> {
    let opened = async {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(limit)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.execute(AssertSqlSafe(setup)).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        Ok(listener)
    };
    timeout(limit, opened)
        .await
        .unwrap_or_else(|_| Err(timeout_error(limit)))
}
