//! PostgreSQL: a connection pool that finds the server that accepts writes.

mod connect;
mod error;
mod executor;
mod pool;
mod url;

use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions;

use self::connect::{ConnectError, Connector};
pub use self::pool::{PooledConnection, PostgresPool, PostgresTransaction};
use self::url::ConnectTargets;
use super::failures::StatementFailures;
use super::{DatabaseOptions, label};
use postern_core::dependency::{Availability, root_cause};
use postern_core::exit::Exit;

/// Maximum time for the first connection.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Server-side limits: they end a runaway statement, and a transaction whose client is stuck, which
/// would block vacuum of every queue table.
const SERVER_TIMEOUTS: [(&str, &str); 2] = [
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "60s"),
];

/// Creates a pool without connections.
pub(super) fn pool(url: &str, options: &DatabaseOptions) -> Result<PostgresPool, Exit> {
    let mut targets = ConnectTargets::parse(url).map_err(|error| {
        Exit::usage(format!(
            "database `{}`: not a PostgreSQL URL: {error}",
            label::without_password(url)
        ))
    })?;
    for host in &mut targets.hosts {
        *host = host
            .clone()
            .application_name(&options.application_name)
            .statement_cache_capacity(super::STATEMENT_CACHE)
            // A connection pooler rejects startup parameters that it does not know.
            .extra_float_digits(None)
            .disable_statement_logging();
    }
    let connector = Connector::new(targets, &SERVER_TIMEOUTS);
    Ok(PostgresPool::new(
        connector,
        options.max_connections,
        options.acquire_timeout,
        options.statement_timeout,
        Arc::new(StatementFailures::new()),
    ))
}

pub(super) async fn open(url: &str, options: &DatabaseOptions) -> Result<PostgresPool, Exit> {
    let pool = pool(url, options)?;
    try_connect(&pool)
        .await
        .map_err(|error| unavailable(&pool, &error))?;
    if pool.shares_sessions(FIRST_CONNECT_TIMEOUT).await {
        return Err(Exit::usage(format!(
            "database {}: a connection pooler shares its sessions between clients and does not preserve session settings, \
             prepared statements, locks or LISTEN; set pool_mode = session in PgBouncer, or connect to PostgreSQL itself",
            pool.label()
        )));
    }
    Ok(pool)
}

/// Connects once and reports whether a later attempt may succeed.
pub(super) async fn probe(url: &str, options: &DatabaseOptions) -> Result<Availability, Exit> {
    let pool = pool(url, options)?;
    match try_connect(&pool).await {
        Ok(()) => Ok(Availability::Available),
        Err(error) if error.is_transient => Ok(Availability::Unavailable(
            unavailable(&pool, &error).message().to_owned(),
        )),
        Err(error) => Err(unavailable(&pool, &error)),
    }
}

/// Connects once outside the pool, to obtain the reason of a failure.
async fn try_connect(pool: &PostgresPool) -> Result<(), ConnectError> {
    pool.try_connect(FIRST_CONNECT_TIMEOUT).await
}

fn unavailable(pool: &PostgresPool, error: &ConnectError) -> Exit {
    Exit::unavailable(format!(
        "database {} is not available: {}",
        pool.label(),
        error.cause
    ))
}

/// Returns the innermost cause on one line, without the names of the driver around it.
pub(super) fn one_line(error: &sqlx::Error) -> String {
    let text = error
        .as_database_error()
        .map_or_else(|| root_cause(error), |cause| cause.message().to_owned());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
