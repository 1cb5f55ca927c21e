//! A pool of PostgreSQL connections in which every statement has a deadline.
//!
//! A connection goes back to the pool only after a statement that was answered. One that did not
//! answer in time, that broke, or whose server is read-only or shutting down is closed, and those
//! that were idle meanwhile are checked before they are used: no failure outlives its cause.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::Connector;
use super::failure::{breaks_connection, no_answer};
use super::listen;

/// Connections to PostgreSQL. Cheap to clone; the clones share the connections.
#[derive(Clone, Debug)]
pub struct PostgresPool {
    shared: Arc<Shared>,
    deadline: Duration,
}

/// A connection that is in use. It goes back to the pool only by [`PooledConnection::release`]:
/// dropped anywhere else, as where a request is cut off within a statement, it is closed.
#[derive(Debug)]
pub struct PooledConnection {
    /// `None` once it was given back.
    connection: Option<PgConnection>,
    opened: Instant,
    generation: u64,
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

/// A transaction; without a commit its connection is closed, which rolls back.
#[derive(Debug)]
pub struct PostgresTransaction {
    lease: PooledConnection,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    connector: Connector,
    permits: Arc<Semaphore>,
    acquire_timeout: Duration,
    /// The most recently used last.
    idle: Mutex<Vec<Idle>>,
    /// Rises with every connection that fails: older ones are checked before they are used.
    generation: AtomicU64,
}

#[derive(Debug)]
struct Idle {
    connection: PgConnection,
    opened: Instant,
    since: Instant,
    generation: u64,
}

/// A connection that was idle for longer is checked before it is used. A busy one is not: a
/// question before every short statement is a quarter of its cost.
const TRUSTED_IDLE_TIME: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is closed.
const MAX_IDLE_TIME: Duration = Duration::from_secs(600);
/// A connection that is older is closed.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// How long the goodbye to the server may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Why a connection that was given back cannot be asked for: giving it back consumes its owner.
const IN_USE: &str = "a connection is given back by value";
/// The pause between two attempts to connect, the first and the longest.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(400));

// === impl PostgresPool ===

impl PostgresPool {
    pub(super) fn new(
        connector: Connector,
        connections: u32,
        acquire_timeout: Duration,
        deadline: Duration,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(usize::try_from(connections).unwrap_or(1)));
        let (idle, generation) = (Mutex::default(), AtomicU64::new(0));
        Self {
            shared: Arc::new(Shared {
                connector,
                permits,
                acquire_timeout,
                idle,
                generation,
            }),
            deadline,
        }
    }

    /// A pool of its own to the same servers, with `SET` of its own for every session.
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
        )
    }

    /// The same connections for statements that may take another time.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            deadline,
        }
    }

    /// How long a statement may take once it has a connection.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The servers, without password and parameters.
    #[must_use]
    pub(crate) fn label(&self) -> String {
        crate::database::label::postgres(&self.shared.connector.targets.hosts)
    }

    pub(crate) fn may_be_plaintext_over_a_network(&self) -> bool {
        self.shared
            .connector
            .targets
            .may_be_plaintext_over_a_network()
    }

    /// Takes a connection, an idle one if there is one.
    ///
    /// # Errors
    /// No connection within the acquire timeout, or the pool is closed.
    pub async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        let by = Instant::now() + self.shared.acquire_timeout;
        let permit = timeout_at(by, Arc::clone(&self.shared.permits).acquire_owned()).await;
        let permit = permit
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        while let Some(mut idle) = self.shared.pop() {
            let is_trusted = idle.since.elapsed() <= TRUSTED_IDLE_TIME
                && idle.generation == self.shared.generation.load(Ordering::Acquire);
            if is_trusted || self.shared.connector.is_usable(&mut idle.connection).await {
                return Ok(self.lease(idle.connection, idle.opened, permit));
            }
            // Its server is gone or takes no writes; the others are connections to the same one.
            drop(idle);
            self.shared.idle().clear();
        }
        self.connect(by, permit).await
    }

    async fn connect(
        &self,
        by: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Result<PooledConnection, sqlx::Error> {
        let mut pause = RETRY_PAUSE.0;
        loop {
            match self.shared.connector.connect(by).await {
                Ok((connection, _)) => return Ok(self.lease(connection, Instant::now(), permit)),
                Err(error) if error.is_away && Instant::now() + pause < by => {}
                Err(error) => return Err(error.into_statement_error()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE.1);
        }
    }

    fn lease(
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

    /// Begins a transaction. Its statements have no deadline of their own: see
    /// [`PostgresPool::within_deadline`].
    ///
    /// # Errors
    /// As any statement.
    pub async fn begin(&self) -> Result<PostgresTransaction, sqlx::Error> {
        let mut lease = self.acquire().await?;
        let began = timeout(self.deadline, lease.execute("BEGIN")).await;
        lease.answer(began, self.deadline)?;
        Ok(PostgresTransaction {
            lease,
            deadline: self.deadline,
        })
    }

    /// Bounds several statements that count together, such as a transaction.
    ///
    /// # Errors
    /// Those of the work, or that it took longer than a statement and its connection may.
    pub async fn within_deadline<T, E: From<sqlx::Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let limit = self.shared.acquire_timeout + self.deadline;
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(no_answer(limit).into()))
    }

    /// A listener on a connection of its own, to the first server that takes writes.
    ///
    /// # Errors
    /// No server does.
    pub async fn listen(&self, channel: &str) -> Result<PgListener, sqlx::Error> {
        let by = Instant::now() + self.shared.acquire_timeout;
        let found = self.shared.connector.connect(by).await;
        let (connection, options) =
            found.map_err(super::connect::ConnectError::into_statement_error)?;
        let options = options.clone();
        drop(connection);
        let setup = self.shared.connector.setup.clone();
        listen::open(options, setup, channel, self.shared.acquire_timeout).await
    }

    /// Connects once, for a clear message where that fails.
    pub(super) async fn greet(
        &self,
        patience: Duration,
    ) -> Result<(), super::connect::ConnectError> {
        let (connection, _) = self
            .shared
            .connector
            .connect(Instant::now() + patience)
            .await?;
        let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        Ok(())
    }

    /// Whether statements of one connection run in several sessions, as behind a pooler in
    /// transaction mode.
    pub(super) async fn shares_sessions(&self, patience: Duration) -> bool {
        let asked = self
            .shared
            .connector
            .shares_sessions(Instant::now() + patience);
        timeout(patience, asked).await.unwrap_or(false)
    }

    /// Closes what is idle, and everything else as it comes back; waits for neither.
    pub async fn close(&self) {
        self.shared.permits.close();
        let idle = std::mem::take(&mut *self.shared.idle());
        join_all(
            idle.into_iter()
                .map(|idle| timeout(CLOSE_TIMEOUT, idle.connection.close())),
        )
        .await;
    }

    /// How many connections are idle.
    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.shared.idle().len()
    }
}

// === impl PooledConnection ===

impl PooledConnection {
    /// Puts it back after a last statement that was answered.
    pub fn release(mut self) {
        if let Some(connection) = self.connection.take() {
            let (opened, generation) = (self.opened, self.generation);
            self.shared.put_back(Idle {
                connection,
                opened,
                since: Instant::now(),
                generation,
            });
        }
    }

    /// Takes it out of the pool for good.
    #[must_use]
    pub fn detach(mut self) -> PgConnection {
        self.connection.take().expect(IN_USE)
    }

    /// Puts it back if the server answered, with a result or with an error that leaves the session
    /// in order.
    pub(super) fn settle<T>(
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

    /// The answer to a statement; one that does not leave the session in order makes the pool check
    /// the others.
    fn answer<T>(
        &self,
        outcome: Result<Result<T, sqlx::Error>, Elapsed>,
        limit: Duration,
    ) -> Result<T, sqlx::Error> {
        let answer = outcome.unwrap_or_else(|_| Err(no_answer(limit)));
        if let Err(error) = &answer
            && breaks_connection(error)
        {
            tracing::warn!(%error, "PostgreSQL connection discarded");
            self.shared.doubt(error);
        }
        answer
    }
}

impl std::ops::Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(IN_USE)
    }
}

impl std::ops::DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(IN_USE)
    }
}

impl Drop for PooledConnection {
    /// A statement without an answer may be the first that a silent server shows: the others are
    /// checked.
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.shared.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

// === impl PostgresTransaction ===

impl PostgresTransaction {
    /// Commits.
    ///
    /// # Errors
    /// As any statement. If there was no answer, it may have been committed all the same.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("COMMIT").await
    }

    /// Rolls back and keeps the connection.
    ///
    /// # Errors
    /// As any statement.
    pub async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        let ended = timeout(self.deadline, self.lease.execute(statement)).await;
        self.lease.settle(ended, self.deadline).map(drop)
    }
}

impl std::ops::Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.lease
    }
}

impl std::ops::DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.lease
    }
}

// === impl Shared ===

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Idle> {
        let mut idle = self.idle();
        idle.retain(|it| it.since.elapsed() < MAX_IDLE_TIME && it.opened.elapsed() < MAX_LIFETIME);
        idle.pop()
    }

    fn put_back(&self, it: Idle) {
        if !self.permits.is_closed() {
            self.idle().push(it);
        }
    }

    /// A connection failed. The others of this server may be as bad: they are checked before they
    /// are used, or closed where the server has said that it is going or takes no writes.
    fn doubt(&self, error: &sqlx::Error) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let was_slow =
            matches!(error, sqlx::Error::Io(error) if error.kind() == ErrorKind::TimedOut);
        if !was_slow {
            self.idle().clear();
        }
    }
}
