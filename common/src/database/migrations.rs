use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, Executor, SqlSafeStr};

use super::{Database, postgres};
use crate::exit::Exit;

/// How long all of a service's migrations may take together, and how long one waits for another process's.
const DEADLINE: Duration = Duration::from_secs(600);

/// One service's tables, as steps in each dialect.
///
/// Several services may share one PostgreSQL database: each keeps its own ledger in a table named
/// `{owner}_migrations`, and begins the names of its own tables with its own prefix. A step is never edited
/// once it was released; its text is held against the ledger. A PostgreSQL step that begins with
/// `-- no-transaction` runs outside one.
///
/// ```
/// use postern_common::database::Migrations;
/// const MIGRATIONS: Migrations = Migrations {
///     owner: "postern_example",
///     postgres: &[(1, "CREATE TABLE example_note (id BIGINT PRIMARY KEY, at BIGINT NOT NULL)")],
///     sqlite: &[(1, "CREATE TABLE example_note (id INTEGER PRIMARY KEY, at INTEGER NOT NULL) STRICT")],
/// };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    /// The service, as an SQL identifier: `postern_auth`, `postern_notify`, `postern_pool`.
    pub owner: &'static str,
    /// Steps for PostgreSQL, by version from 1 on.
    pub postgres: &'static [(i64, &'static str)],
    /// Steps for SQLite, by version from 1 on.
    pub sqlite: &'static [(i64, &'static str)],
}

pub(super) async fn run(database: &Database, migrations: &Migrations) -> Result<(), Exit> {
    let steps = match database {
        Database::Postgres(_) => migrations.postgres,
        Database::Sqlite(_) => migrations.sqlite,
    };
    let migrator = migrator(migrations.owner, steps);
    let outcome = tokio::time::timeout(DEADLINE, Box::pin(apply(database, &migrator))).await;
    let known = steps.iter().map(|(version, _)| *version).max().unwrap_or(0);
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            Err(Exit::unavailable(describe(&error, migrations.owner, known, &database.label())))
        }
        Err(_) => Err(Exit::unavailable(format!(
            "database {}: the migrations of {} did not finish within {} s",
            database.label(),
            migrations.owner,
            DEADLINE.as_secs()
        ))),
    }
}

fn migrator(owner: &str, steps: &'static [(i64, &'static str)]) -> Migrator {
    let migration = |(version, sql): &(i64, &'static str)| {
        let outside = sql.starts_with("-- no-transaction");
        Migration::new(*version, owner.to_owned().into(), MigrationType::Simple, sql.into_sql_str(), outside)
    };
    let mut migrator = Migrator::with_migrations(steps.iter().map(migration).collect());
    migrator.dangerous_set_table_name(format!("{owner}_migrations"));
    migrator
}

/// Runs on a connection of its own: a failure would give it back to the pool with the advisory lock still held.
async fn apply(database: &Database, migrator: &Migrator) -> Result<(), MigrateError> {
    match database {
        Database::Postgres(pool) => {
            let mut connection = pool.acquire().await?.detach();
            // A migration may take longer than a statement of the service; the deadline bounds it.
            connection.execute("SET statement_timeout = 0").await?;
            migrator.run_direct(None, &mut connection, false).await?;
            connection.close().await?;
        }
        Database::Sqlite(sqlite) => {
            let mut connection = sqlite.writer.acquire().await?;
            migrator.run_direct(None, &mut *connection, false).await?;
        }
    }
    Ok(())
}

fn describe(error: &MigrateError, owner: &str, known: i64, label: &str) -> String {
    let what = if let MigrateError::VersionMissing(version) = error
        && *version > known
    {
        let newest = format!("the tables of {owner} have version {version}");
        format!("{newest} and this binary knows only up to {known}: start a newer binary")
    } else if let MigrateError::VersionMismatch(version) = error {
        format!("migration {version} of {owner} was applied with another text than this binary has")
    } else if let MigrateError::Dirty(version) = error {
        format!("migration {version} of {owner} was interrupted half-way; see {owner}_migrations")
    } else if let MigrateError::ExecuteMigration(cause, version) = error {
        format!("migration {version} of {owner} fails: {}", postgres::one_line(cause))
    } else if let MigrateError::Execute(cause) = error {
        format!("the migrations of {owner} cannot run: {}", postgres::one_line(cause))
    } else {
        format!("the migrations of {owner} cannot run: {error}")
    };
    format!("database {label}: {what}")
}
