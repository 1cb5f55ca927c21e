use std::str::FromStr;
use std::time::Duration;

use sqlx::pool::PoolConnectionMetadata;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, PgPool};

use super::{Options, label};
use crate::exit::Exit;

/// How long the first connection may take.
const FIRST_CONTACT: Duration = Duration::from_secs(5);

/// A connection that was idle for longer is tried before it is used: a restart of the server leaves dead ones
/// behind. A busy one is not, because a ping before every short read is a quarter of its cost.
const TRUST_IDLE: Duration = Duration::from_secs(1);

/// What the server gives up for us: a statement that runs away, and a transaction whose owner is stuck, which
/// would keep every queue table from being cleaned.
const LIMITS: &str = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'";

pub(super) async fn open(url: &str, options: &Options) -> Result<PgPool, Exit> {
    let connect = PgConnectOptions::from_str(url)
        .map_err(|error| {
            Exit::usage(format!("database `{}`: not a PostgreSQL URL: {error}", label::without_password(url)))
        })?
        .application_name(&options.application_name)
        .statement_cache_capacity(options.statement_cache)
        .disable_statement_logging();
    greet(&connect).await?;
    Ok(PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        .idle_timeout(Duration::from_secs(600))
        .max_lifetime(Duration::from_secs(3600))
        .test_before_acquire(false)
        .after_connect(|connection, _| Box::pin(async move { connection.execute(LIMITS).await.map(drop) }))
        .before_acquire(|connection, meta| Box::pin(async move { Ok(is_usable(connection, &meta).await) }))
        .connect_lazy_with(connect))
}

/// Whether a connection of a pool may be used, for `before_acquire`: one that was idle for a second is asked.
pub async fn is_usable(connection: &mut PgConnection, meta: &PoolConnectionMetadata) -> bool {
    if meta.idle_for <= TRUST_IDLE {
        return true;
    }
    let answer = tokio::time::timeout(Duration::from_secs(1), connection.ping()).await;
    matches!(answer, Ok(Ok(())))
}

/// Connects once outside the pool: the pool would repeat a refused connection and then tell only that time ran
/// out, and a person needs the cause.
async fn greet(options: &PgConnectOptions) -> Result<(), Exit> {
    let cause = match tokio::time::timeout(FIRST_CONTACT, PgConnection::connect_with(options)).await {
        Ok(Ok(connection)) => {
            let _ = connection.close().await;
            return Ok(());
        }
        Ok(Err(error)) => one_line(&error),
        Err(_) => format!("no answer within {} s", FIRST_CONTACT.as_secs()),
    };
    Err(Exit::unavailable(format!("database {} is not available: {cause}", label::postgres(options))))
}

/// The driver's message on one line.
pub(super) fn one_line(error: &sqlx::Error) -> String {
    let text =
        error.as_database_error().map_or_else(|| error.to_string(), |cause| cause.message().to_owned());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
