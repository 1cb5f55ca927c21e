//! New connections: hosts are tried in order, session settings are applied, and the server must
//! accept writes.

use std::io::ErrorKind;

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

    /// Tries each host in order. The remaining time is divided equally among the remaining hosts.
    pub(super) async fn connect(
        &self,
        deadline: Instant,
    ) -> Result<(PgConnection, &PgConnectOptions), ConnectError> {
        let mut left = u32::try_from(self.targets.hosts.len()).unwrap_or(u32::MAX);
        let mut failed: Option<ConnectError> = None;
        for options in &self.targets.hosts {
            let share = deadline.saturating_duration_since(Instant::now()) / left.max(1);
            left = left.saturating_sub(1);
            let error = match timeout(share, self.connect_to(options)).await {
                Ok(Ok(connection)) => return Ok((connection, options)),
                Ok(Err(error)) => error,
                Err(_) => {
                    ConnectError::transient(format!("no answer within {} ms", share.as_millis()))
                }
            };
            failed = Some(self.merged(failed, error, options));
        }
        Err(failed.unwrap_or_else(|| ConnectError::transient("no host".to_owned())))
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

    /// Combines the reasons of several hosts, each prefixed by its host.
    fn merged(
        &self,
        before: Option<ConnectError>,
        error: ConnectError,
        options: &PgConnectOptions,
    ) -> ConnectError {
        if self.targets.hosts.len() == 1 {
            return error;
        }
        let (before, before_is_transient) = before.map_or((String::new(), false), |before| {
            (format!("{}; ", before.cause), before.is_transient)
        });
        let host = options.get_host();
        ConnectError {
            cause: format!("{before}{host}:{}: {}", options.get_port(), error.cause),
            is_transient: error.is_transient || before_is_transient,
        }
    }

    /// Returns whether a pooler runs statements of one connection in different sessions while it is
    /// not in a transaction.
    pub(super) async fn shares_sessions(&self, deadline: Instant) -> bool {
        let (Ok((mut one, _)), Ok((mut other, _))) =
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
