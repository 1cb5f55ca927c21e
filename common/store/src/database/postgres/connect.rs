//! New connections: hosts are tried in order, session settings are applied, and the server must
//! accept writes.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::time::{Instant, timeout};

use super::error::is_transient;
use super::url::ConnectTargets;

/// Queries the server's role: an empty string if it accepts writes.
const ROLE_QUERY: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' \
     WHEN current_setting('transaction_read_only') = 'on' THEN 'read-only' ELSE '' END";

/// Server-side keepalive: the server ends the session, and releases its locks, within a minute
/// after this host disappears.
const SERVER_KEEPALIVE: [(&str, &str); 4] = [
    ("tcp_keepalives_idle", "15"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "30s"),
];

/// Number of attempts to detect session sharing. A pooler assigns the most recently used session to
/// the next client, but another client may take it first.
const SESSION_PROBES: usize = 3;
/// Maximum time for closing a connection cleanly.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens connections.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) targets: ConnectTargets,
    /// `SET` statements of each session, followed by the role query.
    pub(super) setup: String,
}

/// The reason why a connection failed.
#[derive(Debug)]
pub(super) struct ConnectError {
    pub(super) cause: String,
    /// Whether the server is unreachable, overloaded, starting or not promoted yet, so that a later
    /// attempt may succeed. False if the server rejected the connection.
    pub(super) is_transient: bool,
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(targets: ConnectTargets, settings: &[(&str, &str)]) -> Self {
        let mut setup: String = SERVER_KEEPALIVE
            .iter()
            .chain(settings)
            .map(|(name, value)| format!("SET {name} = '{value}'; "))
            .collect();
        setup.push_str(ROLE_QUERY);
        Self { targets, setup }
    }

    /// Returns the servers' URL without password and parameters.
    pub(super) fn label(&self) -> String {
        crate::database::label::postgres(&self.targets.hosts)
    }

    /// Connects once, to obtain the reason of a failure.
    pub(super) async fn probe(&self, limit: Duration) -> Result<(), ConnectError> {
        let connection = self.connect(Instant::now() + limit).await?;
        let _closed = timeout(CLOSE_TIMEOUT, connection.close()).await;
        Ok(())
    }

    /// Tries each host in order. The remaining time is divided equally among the remaining hosts.
    /// The reasons of several hosts are each prefixed by the host.
    pub(super) async fn connect(&self, deadline: Instant) -> Result<PgConnection, ConnectError> {
        let (hosts, mut failed) = (&self.targets.hosts, Vec::new());
        for (index, options) in hosts.iter().enumerate() {
            let left = u32::try_from(hosts.len() - index).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            let mut error = match timeout(share, self.connect_to(options)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => {
                    ConnectError::transient(format!("no answer within {} ms", share.as_millis()))
                }
            };
            if hosts.len() > 1 {
                let (host, port) = (options.get_host(), options.get_port());
                error.cause = format!("{host}:{port}: {}", error.cause);
            }
            failed.push(error);
        }
        let causes: Vec<&str> = failed.iter().map(|error| &*error.cause).collect();
        Err(ConnectError {
            cause: causes.join("; "),
            is_transient: failed.iter().any(|error| error.is_transient),
        })
    }

    async fn connect_to(&self, options: &PgConnectOptions) -> Result<PgConnection, ConnectError> {
        let mut connection = PgConnection::connect_with(options)
            .await
            .map_err(|error| ConnectError::from_driver(&error))?;
        let row = connection
            .fetch_one(AssertSqlSafe(self.setup.clone()))
            .await;
        let role = row
            .and_then(|row| row.try_get::<String, _>(0))
            .map_err(|error| ConnectError::from_driver(&error))?;
        if role.is_empty() {
            Ok(connection)
        } else {
            Err(ConnectError::transient(format!(
                "the server is {role} and accepts no writes"
            )))
        }
    }

    /// Returns whether a pooler, as in transaction mode, runs statements of one connection in different
    /// sessions while it is not in a transaction.
    pub(super) async fn shares_sessions(&self, limit: Duration) -> bool {
        let asked = self.probe_sessions(Instant::now() + limit);
        timeout(limit, asked).await.unwrap_or(false)
    }

    async fn probe_sessions(&self, deadline: Instant) -> bool {
        let (Ok(mut one), Ok(mut other)) =
            (self.connect(deadline).await, self.connect(deadline).await)
        else {
            return false;
        };
        for _ in 0..SESSION_PROBES {
            let Ok(before) = backend_pid(&mut one).await else {
                return false;
            };
            // In statement mode, transactions are not allowed.
            if let Err(error) = other.execute("BEGIN").await {
                return error.as_database_error().is_some();
            }
            let held = backend_pid(&mut other).await;
            let (after, ended) = (backend_pid(&mut one).await, other.execute("ROLLBACK").await);
            let (Ok(held), Ok(after), Ok(_)) = (held, after, ended) else {
                return false;
            };
            if held == before || after != before {
                return true;
            }
        }
        false
    }
}

/// Returns the process id of the server session.
async fn backend_pid(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    connection
        .fetch_one("SELECT pg_backend_pid()::text")
        .await?
        .try_get(0)
}

// === impl ConnectError ===

impl ConnectError {
    fn transient(cause: String) -> Self {
        Self {
            cause,
            is_transient: true,
        }
    }

    fn from_driver(error: &sqlx::Error) -> Self {
        Self {
            cause: super::one_line(error),
            is_transient: is_transient(error),
        }
    }

    /// Converts to a statement error that [`crate::database::is_unavailable`] recognizes.
    pub(super) fn into_statement_error(self) -> sqlx::Error {
        sqlx::Error::Io(std::io::Error::new(
            ErrorKind::NotConnected,
            format!("cannot connect to PostgreSQL: {}", self.cause),
        ))
    }
}
