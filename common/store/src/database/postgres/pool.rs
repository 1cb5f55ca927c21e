//! A pool of PostgreSQL connections in which every statement has a deadline.
//!
//! A connection returns to the pool only after an answered statement. A connection is closed if a
//! statement times out, the connection breaks, or its server becomes read-only or shuts down.
//! Connections that were idle at that time are checked before their next use, so that no failure
//! outlives its cause.

mod transaction;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use sqlx::{Connection, Executor, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

pub use self::transaction::PostgresTransaction;
use super::connect::{CLOSE_TIMEOUT, Connector};
use super::error::{breaks_connection, timeout_error};
use crate::database::PoolUsage;
use crate::database::failures::StatementFailures;
use postern_core::backoff::Backoff;

/// A pool of connections to PostgreSQL. Clones share the connections.
#[derive(Clone, Debug)]
pub struct PostgresPool {
    shared: Arc<PoolState>,
    deadline: Duration,
}

/// A connection in use. It returns to the pool only by [`PooledConnection::release`]; if it is
/// dropped, for example because a request is cancelled during a statement, it is closed.
#[derive(Debug)]
pub struct PooledConnection {
    /// `None` after release.
    connection: Option<PgConnection>,
    opened: Instant,
    generation: u64,
    shared: Arc<PoolState>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct PoolState {
    connector: Connector,
    permits: Arc<Semaphore>,
    max_connections: usize,
    /// Each caller that waits for a permit has a copy.
    waiting: Arc<()>,
    acquire_timeout: Duration,
    /// Idle connections, most recently used last.
    idle: Mutex<Vec<IdleConnection>>,
    /// Incremented by each connection failure; connections of an earlier generation are checked
    /// before their next use.
    generation: AtomicU64,
    /// Shared with the pools that [`PostgresPool::separate`] creates.
    failures: Arc<StatementFailures>,
}

#[derive(Debug)]
struct IdleConnection {
    connection: PgConnection,
    opened: Instant,
    since: Instant,
    generation: u64,
}

/// Idle time after which a connection is checked before use. Connections idle for less are not
/// checked: a check before each short statement would add a quarter of its cost.
const TRUSTED_IDLE_TIME: Duration = Duration::from_secs(1);
/// Maximum time of the check of an idle connection.
const CHECK_TIMEOUT: Duration = Duration::from_millis(700);
/// Idle time after which a connection is closed.
const MAX_IDLE_TIME: Duration = Duration::from_secs(600);
/// Age after which a connection is closed.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// Message of the panic if a released connection is used, which the API prevents by consuming it.
const RELEASED_CONNECTION: &str = "a released connection cannot be used";
/// Delays between attempts to connect.
const CONNECT_RETRY_DELAYS: Backoff =
    Backoff::new(Duration::from_millis(10), Duration::from_millis(400));

// === impl PostgresPool ===

impl PostgresPool {
    pub(super) fn new(
        connector: Connector,
        connections: u32,
        acquire_timeout: Duration,
        deadline: Duration,
        failures: Arc<StatementFailures>,
    ) -> Self {
        let max_connections = usize::try_from(connections).unwrap_or(1);
        let permits = Arc::new(Semaphore::new(max_connections));
        let (idle, generation) = (Mutex::default(), AtomicU64::new(0));
        Self {
            shared: Arc::new(PoolState {
                connector,
                permits,
                max_connections,
                waiting: Arc::default(),
                acquire_timeout,
                idle,
                generation,
                failures,
            }),
            deadline,
        }
    }

    /// Creates a separate pool to the same servers, with its own session settings.
    #[must_use]
    pub fn separate(
        &self,
        connections: u32,
        settings: &[(&str, &str)],
        deadline: Duration,
    ) -> Self {
        let connector = Connector::new(self.shared.connector.targets.clone(), settings);
        Self::new(
            connector,
            connections,
            self.shared.acquire_timeout,
            deadline,
            Arc::clone(&self.shared.failures),
        )
    }

    /// Returns the same pool with another statement deadline.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// Returns the maximum time of a statement once it has a connection.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(in crate::database) fn failures(&self) -> &StatementFailures {
        &self.shared.failures
    }

    /// Returns the servers' URL without password and parameters.
    #[must_use]
    pub(crate) fn label(&self) -> String {
        self.shared.connector.label()
    }

    pub(crate) fn may_be_unencrypted(&self) -> bool {
        self.shared.connector.targets.may_be_unencrypted()
    }

    /// Takes an idle connection, or opens one.
    pub async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        let deadline_at = Instant::now() + self.shared.acquire_timeout;
        let waiting = Arc::clone(&self.shared.waiting);
        let permit = timeout_at(
            deadline_at,
            Arc::clone(&self.shared.permits).acquire_owned(),
        )
        .await;
        drop(waiting);
        let permit = permit
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        while let Some(mut idle) = self.shared.pop() {
            let is_trusted = idle.since.elapsed() <= TRUSTED_IDLE_TIME
                && idle.generation == self.shared.generation.load(Ordering::Acquire);
            if is_trusted || is_alive(&mut idle.connection).await {
                return Ok(self.wrap(idle.connection, idle.opened, permit));
            }
            // The server is unreachable, and the other idle connections lead to the same one.
            drop(idle);
            self.shared.idle.lock().clear();
        }
        self.connect(deadline_at, permit).await
    }

    async fn connect(
        &self,
        deadline_at: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Result<PooledConnection, sqlx::Error> {
        let mut delays = CONNECT_RETRY_DELAYS.delays();
        loop {
            let delay = delays.next_delay();
            match self.shared.connector.connect(deadline_at).await {
                Ok(connection) => return Ok(self.wrap(connection, Instant::now(), permit)),
                Err(error) if error.is_transient && Instant::now() + delay < deadline_at => {}
                Err(error) => return Err(error.into_statement_error()),
            }
            tokio::time::sleep(delay).await;
        }
    }

    fn wrap(
        &self,
        connection: PgConnection,
        opened: Instant,
        permit: OwnedSemaphorePermit,
    ) -> PooledConnection {
        let generation = self.shared.generation.load(Ordering::Acquire);
        let (connection, shared) = (Some(connection), Arc::clone(&self.shared));
        PooledConnection {
            connection,
            opened,
            generation,
            shared,
            _permit: permit,
        }
    }

    /// Begins a transaction. Its statements have no deadline of their own, see
    /// [`PostgresPool::within_deadline`].
    pub async fn begin(&self) -> Result<PostgresTransaction, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let began = timeout(self.deadline, connection.execute("BEGIN")).await;
        connection.answer(began, self.deadline)?;
        Ok(PostgresTransaction::new(connection, self.deadline))
    }

    /// Applies one deadline to several statements, such as a transaction.
    ///
    /// # Errors
    /// The error of `work`, or a timeout after the acquire timeout plus the statement deadline.
    pub async fn within_deadline<T, E: From<sqlx::Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let limit = self.shared.acquire_timeout + self.deadline;
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(timeout_error(limit).into()))
    }

    /// Executes a transaction within one deadline. Its failures are those of `sql`: the statement
    /// that the transaction is for.
    pub async fn in_transaction<T>(
        &self,
        sql: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let progress = self.failures().begin(sql);
        let result = self.within_deadline(work).await;
        progress.end(&result);
        result
    }

    /// Closes idle connections now and the others when they are released, without waiting for them.
    pub async fn close(&self) {
        self.shared.permits.close();
        let idle = std::mem::take(&mut *self.shared.idle.lock());
        join_all(
            idle.into_iter()
                .map(|idle| timeout(CLOSE_TIMEOUT, idle.connection.close())),
        )
        .await;
    }

    /// Returns the use of the connections.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let shared = &self.shared;
        let free = shared.permits.available_permits();
        PoolUsage {
            max: shared.max_connections,
            in_use: shared.max_connections.saturating_sub(free),
            idle: self.idle_connections(),
            waiting: Arc::strong_count(&shared.waiting) - 1,
        }
    }

    /// Returns the number of idle connections.
    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.shared.idle.lock().len()
    }
}

/// Returns whether the server answers. This is no transaction, so that idle replicas cost little.
async fn is_alive(connection: &mut PgConnection) -> bool {
    matches!(timeout(CHECK_TIMEOUT, connection.ping()).await, Ok(Ok(())))
}

// === impl PooledConnection ===

impl PooledConnection {
    /// Returns the connection to the pool after its last statement was answered.
    pub fn release(mut self) {
        if let Some(connection) = self.connection.take()
            && !self.shared.permits.is_closed()
        {
            let (opened, generation) = (self.opened, self.generation);
            self.shared.idle.lock().push(IdleConnection {
                connection,
                opened,
                since: Instant::now(),
                generation,
            });
        }
    }

    /// Removes the connection from the pool permanently.
    #[must_use]
    pub fn detach(mut self) -> PgConnection {
        self.connection.take().expect(RELEASED_CONNECTION)
    }

    /// Returns the connection to the pool if the server answered with a result, or with an error
    /// that leaves the session usable.
    pub(super) fn finish<T>(
        self,
        outcome: Result<Result<T, sqlx::Error>, Elapsed>,
        limit: Duration,
    ) -> Result<T, sqlx::Error> {
        let answer = self.answer(outcome, limit);
        if answer
            .as_ref()
            .err()
            .is_none_or(|error| !breaks_connection(error))
        {
            self.release();
        }
        answer
    }

    /// Returns the result of a statement. An error that makes the session unusable causes the pool
    /// to check its other connections.
    fn answer<T>(
        &self,
        outcome: Result<Result<T, sqlx::Error>, Elapsed>,
        limit: Duration,
    ) -> Result<T, sqlx::Error> {
        let answer = outcome.unwrap_or_else(|_| Err(timeout_error(limit)));
        if let Err(error) = &answer
            && breaks_connection(error)
        {
            postern_core::log_outage!("database", %error, "PostgreSQL connection discarded");
            self.shared.invalidate_idle(error);
        }
        answer
    }
}

impl std::ops::Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(RELEASED_CONNECTION)
    }
}

impl std::ops::DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(RELEASED_CONNECTION)
    }
}

impl Drop for PooledConnection {
    /// Closes the connection. An unanswered statement may be the first sign of an unresponsive
    /// server, so the other connections are checked.
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.shared.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

// === impl PoolState ===

impl PoolState {
    fn pop(&self) -> Option<IdleConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|it| it.since.elapsed() < MAX_IDLE_TIME && it.opened.elapsed() < MAX_LIFETIME);
        idle.pop()
    }

    /// Handles a failed connection. The idle connections are checked before their next use, or
    /// closed at once if the server reported that it is shutting down or read-only.
    fn invalidate_idle(&self, error: &sqlx::Error) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let was_slow =
            matches!(error, sqlx::Error::Io(error) if error.kind() == ErrorKind::TimedOut);
        if !was_slow {
            self.idle.lock().clear();
        }
    }
}
