//! Statements of PostgreSQL that fail, by name, and the sessions that block them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use sqlx::Error;
use tokio::time::{Instant, timeout};

use super::postgres::{PostgresPool, one_line};
use super::statement::summary;
use super::{Database, is_unique_violation};
use postern_core::dependency::{Dependencies, Dependency};

/// Time after the last failure of a statement that is not executed any more, in which it counts as
/// failing.
const FAILING_TIME: Duration = Duration::from_secs(15);
/// Time from which a statement is slow, which counts as failing: callers give up soon after it.
const SLOW_TIME: Duration = Duration::from_secs(2);
/// Maximum time of the query for blocking sessions.
const BLOCKERS_TIMEOUT: Duration = Duration::from_secs(1);
/// Sessions for which others wait, and which do not wait for a lock themselves. Names are those of
/// <https://www.postgresql.org/docs/current/monitoring-stats.html>.
const SELECT_BLOCKERS: &str = "SELECT string_agg(DISTINCT format('session %s of %s (%s)', holder.pid, holder.usename, \
     coalesce(nullif(holder.application_name, ''), 'no application name')), ', ') \
     FROM pg_stat_activity AS waiting \
     CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking(pid) \
     JOIN pg_stat_activity AS holder ON holder.pid = blocking.pid \
     WHERE waiting.datname = current_database() AND holder.wait_event_type IS DISTINCT FROM 'Lock'";

/// The failures of the statements of a pool. A statement is named by its operation and its table.
#[derive(Debug)]
pub(super) struct StatementFailures {
    counter: IntCounterVec,
    failing: Mutex<BTreeMap<String, Failing>>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    cause: String,
}

/// A statement in progress. One that its caller gives up counts as well if it was slow.
pub(super) struct InProgress<'a> {
    failures: &'a StatementFailures,
    sql: &'a str,
    since: Instant,
    is_recorded: bool,
}

/// Whether the statements of a database succeed. A probe of the database does not show it: a lock
/// concerns one table.
#[derive(Debug)]
pub struct StatementHealth {
    database: Database,
    dependency: Dependency,
}

// === impl StatementFailures ===

impl StatementFailures {
    pub(super) fn new() -> Self {
        let options = Opts::new(
            "postern_database_statement_failures_total",
            "Failed statements, by operation and table.",
        );
        Self {
            counter: IntCounterVec::new(options, &["statement"])
                .expect("the name and the label are valid constants"),
            failing: Mutex::default(),
        }
    }

    /// Observes a statement from now on.
    pub(super) fn begin<'a>(&'a self, sql: &'a str) -> InProgress<'a> {
        InProgress {
            failures: self,
            sql,
            since: Instant::now(),
            is_recorded: false,
        }
    }

    fn fail(&self, statement: String, cause: String) {
        let now = Instant::now();
        let mut failing = self.failing.lock();
        let since = failing.get(&statement).map_or(now, |it| it.since);
        let entry = Failing {
            since,
            last: now,
            cause,
        };
        failing.insert(statement, entry);
    }

    /// Forgets what failed, for example because the whole database is unavailable.
    pub(super) fn clear(&self) {
        self.failing.lock().clear();
    }

    /// Describes the statement that has failed for the longest time, and repeatedly.
    fn longest(&self) -> Option<String> {
        let mut failing = self.failing.lock();
        failing.retain(|_, it| it.last.elapsed() < FAILING_TIME);
        let repeated = failing.iter().filter(|(_, it)| it.last > it.since);
        let (statement, it) = repeated.min_by_key(|(_, it)| it.since)?;
        let (since_s, cause) = (it.since.elapsed().as_secs(), &it.cause);
        Some(format!("{statement} fails for {since_s} s: {cause}"))
    }
}

impl InProgress<'_> {
    /// Records the result. A statement that violates a constraint or has no row did its work.
    pub(super) fn end<T>(mut self, result: &Result<T, Error>) {
        let did_its_work =
            |error: &&Error| matches!(error, Error::RowNotFound) || is_unique_violation(error);
        if let Some(error) = result.as_ref().err().filter(|error| !did_its_work(error)) {
            let statement = summary(self.sql);
            self.failures
                .counter
                .with_label_values(&[&*statement])
                .inc();
            self.failures.fail(statement, one_line(error));
        } else if self.since.elapsed() < SLOW_TIME {
            let mut failing = self.failures.failing.lock();
            // The name costs more than the rest.
            if !failing.is_empty() {
                failing.remove(&summary(self.sql));
            }
        } else {
            return;
        }
        self.is_recorded = true;
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let elapsed = self.since.elapsed();
        if elapsed >= SLOW_TIME && !self.is_recorded {
            let cause = format!("it took {:.1} s or longer", elapsed.as_secs_f64());
            self.failures.fail(summary(self.sql), cause);
        }
    }
}

// === impl StatementHealth ===

impl StatementHealth {
    /// Exports `postern_database_statement_failures_total`, and the dependency `statements`.
    #[must_use]
    pub fn new(database: &Database, dependencies: &Dependencies, registry: &Registry) -> Self {
        if let Database::Postgres(pool) = database {
            let counter = Box::new(pool.failures().counter.clone());
            if let Err(error) = registry.register(counter) {
                tracing::debug!(%error, "statement failures not exported");
            }
        }
        Self {
            database: database.clone(),
            dependency: dependencies
                .optional("statements", database.label())
                .of_cause("database"),
        }
    }

    /// Updates readiness with the statement that fails, since when, and who blocks it. SQLite has one
    /// lock for all tables, which the probe of the database needs as well.
    pub async fn check(&self) {
        let Database::Postgres(pool) = &self.database else {
            return;
        };
        let Some(reason) = pool.failures().longest() else {
            return self.dependency.record_success();
        };
        self.dependency.record_failure(match blockers(pool).await {
            Some(blockers) => format!("{reason}; blocked by {blockers}"),
            None => reason,
        });
    }
}

/// Returns the sessions that block statements of this database; `None` if there are none.
async fn blockers(pool: &PostgresPool) -> Option<String> {
    let query = sqlx::query_scalar::<_, Option<String>>(SELECT_BLOCKERS).fetch_one(pool);
    timeout(BLOCKERS_TIMEOUT, query).await.ok()?.ok()?
}
