//! New connections: the hosts in order, the settings of a session, and whether the server takes
//! writes.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::time::{Instant, timeout};

use super::failure::is_away;
use super::socket::watch_connections;
use super::url::{SessionAttrs, Targets};

/// What a server says of itself: nothing, if it takes writes.
const ROLE: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' \
     WHEN current_setting('transaction_read_only') = 'on' THEN 'read-only' ELSE '' END";

/// How long a check of an idle connection may take.
const CHECK_TIMEOUT: Duration = Duration::from_millis(700);

/// How the server notices that this host is gone: it ends the session, and with it the locks,
/// within a minute.
const SERVER_KEEPALIVE: [(&str, &str); 4] = [
    ("tcp_keepalives_idle", "15"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "30s"),
];

/// A pooler gives the session that was used last to whoever asks next; other clients may be faster
/// once.
const SESSION_PROBES: usize = 3;

/// Makes connections.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) targets: Targets,
    /// `SET` of every session, and the question for its role.
    pub(super) setup: String,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct ConnectError {
    pub(super) cause: String,
    /// Whether the server is away, full, starting or not promoted yet, rather than that it turned
    /// us down.
    pub(super) is_away: bool,
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(targets: Targets, settings: &[(&str, &str)]) -> Self {
        let mut setup: String = SERVER_KEEPALIVE
            .iter()
            .chain(settings)
            .map(|(name, value)| format!("SET {name} = '{value}'; "))
            .collect();
        setup.push_str(ROLE);
        Self { targets, setup }
    }

    /// Tries each host in order; one that does not answer leaves its share of the time to the
    /// others.
    pub(super) async fn connect(
        &self,
        by: Instant,
    ) -> Result<(PgConnection, &PgConnectOptions), ConnectError> {
        let mut left = u32::try_from(self.targets.hosts.len()).unwrap_or(u32::MAX);
        let mut failed: Option<ConnectError> = None;
        for options in &self.targets.hosts {
            let share = by.saturating_duration_since(Instant::now()) / left.max(1);
            left = left.saturating_sub(1);
            let error = match timeout(share, self.connect_to(options)).await {
                Ok(Ok(connection)) => return Ok((connection, options)),
                Ok(Err(error)) => error,
                Err(_) => ConnectError::away(format!("no answer within {} ms", share.as_millis())),
            };
            failed = Some(self.merged(failed, error, options));
        }
        Err(failed.unwrap_or_else(|| ConnectError::away("no host".to_owned())))
    }

    async fn connect_to(&self, options: &PgConnectOptions) -> Result<PgConnection, ConnectError> {
        let mut connection = PgConnection::connect_with(options)
            .await
            .map_err(|error| ConnectError::of(&error))?;
        if options.get_socket().is_none() {
            watch_connections(options.get_port());
        }
        let row = connection
            .fetch_one(AssertSqlSafe(self.setup.clone()))
            .await;
        let role = row
            .and_then(|row| row.try_get::<String, _>(0))
            .map_err(|error| ConnectError::of(&error))?;
        if self.targets.session.accepts(&role) {
            Ok(connection)
        } else {
            Err(ConnectError::away(format!(
                "the server is {role} and takes no writes"
            )))
        }
    }

    /// With several hosts each cause has its host.
    fn merged(
        &self,
        before: Option<ConnectError>,
        error: ConnectError,
        options: &PgConnectOptions,
    ) -> ConnectError {
        if self.targets.hosts.len() == 1 {
            return error;
        }
        let (before, away_before) = before.map_or((String::new(), false), |before| {
            (format!("{}; ", before.cause), before.is_away)
        });
        let host = options.get_host();
        ConnectError {
            cause: format!("{before}{host}:{}: {}", options.get_port(), error.cause),
            is_away: error.is_away || away_before,
        }
    }

    /// Whether a pooler gives the session of one connection to another while the first holds no
    /// transaction.
    pub(super) async fn shares_sessions(&self, by: Instant) -> bool {
        let (Ok((mut one, _)), Ok((mut other, _))) =
            (self.connect(by).await, self.connect(by).await)
        else {
            return false;
        };
        for _ in 0..SESSION_PROBES {
            let Ok(before) = session(&mut one).await else {
                return false;
            };
            // In statement mode there are no transactions.
            if let Err(error) = other.execute("BEGIN").await {
                return error.as_database_error().is_some();
            }
            let held = session(&mut other).await;
            let (after, ended) = (session(&mut one).await, other.execute("ROLLBACK").await);
            let (Ok(held), Ok(after), Ok(_)) = (held, after, ended) else {
                return false;
            };
            if held == before || after != before {
                return true;
            }
        }
        false
    }

    /// Whether an idle connection is alive and its server still takes writes.
    pub(super) async fn is_usable(&self, connection: &mut PgConnection) -> bool {
        let question = async {
            let role = connection.fetch_one(ROLE).await?.try_get::<String, _>(0)?;
            Ok::<_, sqlx::Error>(
                self.targets.session == SessionAttrs::Any || self.targets.session.accepts(&role),
            )
        };
        matches!(timeout(CHECK_TIMEOUT, question).await, Ok(Ok(true)))
    }
}

/// The process of the server that answers a connection.
async fn session(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    connection
        .fetch_one("SELECT pg_backend_pid()::text")
        .await?
        .try_get(0)
}

// === impl ConnectError ===

impl ConnectError {
    fn away(cause: String) -> Self {
        Self {
            cause,
            is_away: true,
        }
    }

    fn of(error: &sqlx::Error) -> Self {
        Self {
            cause: super::one_line(error),
            is_away: is_away(error),
        }
    }

    /// As an error of a statement: the store is not available, whatever the cause.
    pub(super) fn into_statement_error(self) -> sqlx::Error {
        sqlx::Error::Io(std::io::Error::new(
            ErrorKind::NotConnected,
            format!("cannot connect to PostgreSQL: {}", self.cause),
        ))
    }
}
