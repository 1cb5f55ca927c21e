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

const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Server-side limits: they end a runaway statement, and a transaction whose client is stuck, which
/// would block vacuum of every queue table.
const SERVER_TIMEOUTS: [(&str, &str); 2] = [
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "60s"),
];

fn connector(url: &str, options: &DatabaseOptions) -> Result<Connector, Exit> {
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
    Ok(Connector::new(targets, &SERVER_TIMEOUTS))
}

pub(super) async fn open(url: &str, options: &DatabaseOptions) -> Result<PostgresPool, Exit> {
    let connector = connector(url, options)?;
    let connected = connector.probe(FIRST_CONNECT_TIMEOUT).await;
    connected.map_err(|error| unavailable(&connector, &error))?;
    if connector.shares_sessions(FIRST_CONNECT_TIMEOUT).await {
        return Err(Exit::usage(format!(
            "database {}: a connection pooler shares its sessions between clients and does not preserve session settings, \
             prepared statements, locks or LISTEN; set pool_mode = session in PgBouncer, or connect to PostgreSQL itself",
            connector.label()
        )));
    }
    Ok(PostgresPool::new(
        connector,
        options.max_connections,
        options.acquire_timeout,
        options.statement_timeout,
        Arc::new(StatementFailures::new()),
    ))
}

/// Connects once and reports whether a later attempt may succeed.
pub(super) async fn probe(url: &str, options: &DatabaseOptions) -> Result<Availability, Exit> {
    let connector = connector(url, options)?;
    match connector.probe(FIRST_CONNECT_TIMEOUT).await {
        Ok(()) => Ok(Availability::Available),
        Err(error) => {
            let exit = unavailable(&connector, &error);
            match error.is_transient {
                true => Ok(Availability::Unavailable(exit.message().to_owned())),
                false => Err(exit),
            }
        }
    }
}

fn unavailable(connector: &Connector, error: &ConnectError) -> Exit {
    let (label, cause) = (connector.label(), &error.cause);
    Exit::unavailable(format!("database {label} is not available: {cause}"))
}

/// Returns the innermost cause on one line, without the names of the driver around it.
pub(super) fn one_line(error: &sqlx::Error) -> String {
    let text = error
        .as_database_error()
        .map_or_else(|| root_cause(error), |cause| cause.message().to_owned());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
