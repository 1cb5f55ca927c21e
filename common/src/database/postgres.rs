mod connect;
mod executor;
mod failure;
mod listen;
mod pool;
mod socket;
mod url;

use std::time::Duration;

use sqlx::ConnectOptions;

use self::connect::{ConnectError, Connector};
pub use self::pool::{PooledConnection, PostgresPool, PostgresTransaction};
use self::url::Targets;
use super::{Contact, Options, label};
use crate::exit::Exit;

/// How long the first connection may take.
const FIRST_CONTACT: Duration = Duration::from_secs(5);

/// What the server gives up for us: a statement that runs away, and a transaction whose owner is
/// stuck, which would keep every queue table from being cleaned.
const LIMITS: [(&str, &str); 2] = [
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "60s"),
];

/// A pool that has not connected yet.
pub(super) fn pool(url: &str, options: &Options) -> Result<PostgresPool, Exit> {
    let mut targets = Targets::parse(url).map_err(|error| {
        Exit::usage(format!(
            "database `{}`: not a PostgreSQL URL: {error}",
            label::without_password(url)
        ))
    })?;
    for host in &mut targets.hosts {
        *host = host
            .clone()
            .application_name(&options.application_name)
            .statement_cache_capacity(options.statement_cache)
            // A connection pooler refuses start-up parameters that it does not know.
            .extra_float_digits(None)
            .disable_statement_logging();
    }
    let connector = Connector::new(targets, &LIMITS);
    Ok(PostgresPool::new(
        connector,
        options.max_connections,
        options.acquire_timeout,
        options.deadline,
    ))
}

pub(super) async fn open(url: &str, options: &Options) -> Result<PostgresPool, Exit> {
    let pool = pool(url, options)?;
    greet(&pool)
        .await
        .map_err(|error| unavailable(&pool, &error))?;
    if pool.shares_sessions(FIRST_CONTACT).await {
        return Err(Exit::usage(format!(
            "database {}: a connection pooler shares its sessions between clients, which keeps neither settings, prepared \
             statements, locks nor LISTEN; set pool_mode = session in PgBouncer, or connect to PostgreSQL itself",
            pool.label()
        )));
    }
    Ok(pool)
}

/// Connects once, for whoever can wait.
pub(super) async fn contact(url: &str, options: &Options) -> Result<Contact, Exit> {
    let pool = pool(url, options)?;
    match greet(&pool).await {
        Ok(()) => Ok(Contact::Made),
        Err(error) if error.is_away => Ok(Contact::Away(
            unavailable(&pool, &error).message().to_owned(),
        )),
        Err(error) => Err(unavailable(&pool, &error)),
    }
}

/// Connects once outside the pool, for the cause in words.
async fn greet(pool: &PostgresPool) -> Result<(), ConnectError> {
    pool.greet(FIRST_CONTACT).await
}

fn unavailable(pool: &PostgresPool, error: &ConnectError) -> Exit {
    Exit::unavailable(format!(
        "database {} is not available: {}",
        pool.label(),
        error.cause
    ))
}

/// The driver's message on one line.
pub(super) fn one_line(error: &sqlx::Error) -> String {
    let text = error
        .as_database_error()
        .map_or_else(|| error.to_string(), |cause| cause.message().to_owned());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
