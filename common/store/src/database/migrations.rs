//! Versioned schema migrations, and the check that the schema supports this binary.

use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, Executor, SqlSafeStr};

use super::{Database, is_unavailable, postgres};
use crate::with_dialect;
use postern_core::exit::Exit;

/// Maximum time for all migrations of a service, including the wait for another process that
/// migrates.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time of a failed write probe after which it is repeated once on another connection.
const STALE_CONNECTION_TIME: Duration = Duration::from_millis(250);
/// Maximum time of the repetition, so that a caller learns the reason of the first failure.
const SECOND_PROBE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The schema of one service, as migrations in each dialect.
///
/// Several services may share one PostgreSQL database. Each records its migrations in a table named
/// `{owner}_migrations` and prefixes the names of its own tables. A released migration is never
/// edited; its text is compared with the recorded checksum. A PostgreSQL migration that begins with
/// `-- no-transaction` runs outside a transaction.
///
/// During an upgrade, processes of several releases use the same tables, and the older release may
/// be started again. Therefore a migration only adds what older binaries can ignore (expand), and
/// every binary accepts migrations after its own. A migration that removes something (contract)
/// comes in a later release, when no running process needs it, and declares so in its first lines:
/// `-- oldest-binary: 7` means that binaries whose own last migration is before 7 are rejected from
/// then on. The value is stored with the migration, so that older binaries can read it.
/// ```
/// use postern_store::database::Migrations;
/// const MIGRATIONS: Migrations = Migrations {
///     owner: "postern_example",
///     postgres: &[(1, "CREATE TABLE example_note (id BIGINT PRIMARY KEY, at BIGINT NOT NULL)")],
///     sqlite: &[(1, "CREATE TABLE example_note (id INTEGER PRIMARY KEY, at INTEGER NOT NULL) STRICT")],
/// };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    /// Owner of the tables, an SQL identifier: `postern_auth`, `postern_notify`, `postern_pool`.
    pub owner: &'static str,
    /// Migrations for PostgreSQL, as (version, SQL), from version 1.
    pub postgres: &'static [(i64, &'static str)],
    /// Migrations for SQLite, as (version, SQL), from version 1.
    pub sqlite: &'static [(i64, &'static str)],
}

/// Declares the oldest supported binary in the first lines of a migration.
const OLDEST_BINARY_DECLARATION: &str = "-- oldest-binary: ";
/// Prefix of the declaration in the description column of the migrations table.
const OLDEST_BINARY_DESCRIPTION: &str = "oldest binary ";

pub(super) async fn run(database: &Database, migrations: &Migrations) -> Result<(), Exit> {
    let steps = steps(database, migrations);
    let migrator = migrator(migrations.owner, steps);
    let (owner, label, known) = (migrations.owner, database.label(), newest(steps));
    let outcome = tokio::time::timeout(
        MIGRATION_TIMEOUT,
        Box::pin(apply(database, &migrator, owner, known)),
    )
    .await;
    let reason = match outcome {
        Ok(Ok(newer)) => {
            return check_newer(&newer, owner, known).map_err(|reason| exit_error(&label, &reason));
        }
        Ok(Err(error)) => describe(&error, owner),
        Err(_) => format!(
            "the migrations of {owner} did not finish within {} s",
            MIGRATION_TIMEOUT.as_secs()
        ),
    };
    Err(exit_error(&label, &reason))
}

/// Verifies that all migrations were applied.
pub(super) async fn verify(database: &Database, migrations: &Migrations) -> Result<(), Exit> {
    let (owner, known) = (migrations.owner, newest(steps(database, migrations)));
    let found: Result<Vec<NewerMigration>, _> = with_dialect!(database.readers(), pool => {
        let query = sqlx::query_as(AssertSqlSafe(newer_migrations_query(owner)));
        query.bind(known - 1).fetch_all(pool).await
    });
    let outcome = match found {
        Ok(found) => match found.split_first() {
            Some(((version, _), newer)) if *version == known => check_newer(newer, owner, known),
            Some(_) | None => Err(outdated(owner)),
        },
        // The table does not exist.
        Err(error @ sqlx::Error::Database(_)) if !is_unavailable(&error) => Err(outdated(owner)),
        Err(error) => Err(postgres::one_line(&error)),
    };
    outcome.map_err(|reason| exit_error(&database.label(), &reason))
}

fn outdated(owner: &str) -> String {
    format!(
        "the schema of {owner} lacks migrations of this binary: start the service of this release first, which applies them"
    )
}

/// Verifies that the store accepts a write and that the schema supports this binary. The write counts
/// in the row of the newest known migration: SQLite leaves out one that changes nothing.
pub(super) async fn verify_writable(
    database: &Database,
    migrations: &Migrations,
) -> Result<Result<(), Exit>, sqlx::Error> {
    let (owner, known) = (migrations.owner, newest(steps(database, migrations)));
    let (write, newer) = (write_probe(owner), newer_migrations_query(owner));
    let newer = match database {
        Database::Postgres(pool) => {
            let sql = format!("WITH written AS ({write} RETURNING 1) {newer}");
            let probe = || {
                sqlx::query_as(AssertSqlSafe(sql.clone()))
                    .bind(known)
                    .fetch_all(pool)
            };
            let began = Instant::now();
            match probe().await {
                // The idle connection was broken, or led to a server that is read-only now.
                Err(error) if began.elapsed() < STALE_CONNECTION_TIME => {
                    let again = tokio::time::timeout(SECOND_PROBE_TIMEOUT, probe()).await;
                    again.unwrap_or(Err(error))?
                }
                outcome => outcome?,
            }
        }
        Database::Sqlite(sqlite) => {
            sqlx::query(AssertSqlSafe(write))
                .bind(known)
                .execute(&sqlite.writer)
                .await?;
            sqlx::query_as(AssertSqlSafe(newer))
                .bind(known)
                .fetch_all(&sqlite.readers)
                .await?
        }
    };
    Ok(check_newer(&newer, owner, known).map_err(|reason| exit_error(&database.label(), &reason)))
}

fn write_probe(owner: &str) -> String {
    format!("UPDATE {owner}_migrations SET execution_time = execution_time + 1 WHERE version = $1")
}

fn steps(database: &Database, migrations: &Migrations) -> &'static [(i64, &'static str)] {
    match database {
        Database::Postgres(_) => migrations.postgres,
        Database::Sqlite(_) => migrations.sqlite,
    }
}

fn newest(steps: &[(i64, &str)]) -> i64 {
    steps.iter().map(|(version, _)| *version).max().unwrap_or(0)
}

fn exit_error(label: &str, reason: &str) -> Exit {
    Exit::unavailable(format!("database {label}: {reason}"))
}

fn migrator(owner: &str, steps: &'static [(i64, &'static str)]) -> Migrator {
    let mut oldest = 0;
    let migration = |(version, sql): &(i64, &'static str)| {
        oldest = oldest.max(oldest_binary(sql));
        let description = format!("{OLDEST_BINARY_DESCRIPTION}{oldest}");
        let no_transaction = sql.starts_with("-- no-transaction");
        Migration::new(
            *version,
            description.into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            no_transaction,
        )
    };
    let mut migrator = Migrator::with_migrations(steps.iter().map(migration).collect());
    // Unknown newer migrations are checked in `check_newer`.
    migrator.set_ignore_missing(true);
    migrator.dangerous_set_table_name(format!("{owner}_migrations"));
    migrator
}

/// Returns the oldest binary that a migration supports, or 0 if it declares none.
fn oldest_binary(sql: &str) -> i64 {
    let head = sql.lines().take_while(|line| line.starts_with("--"));
    head.filter_map(|line| {
        line.strip_prefix(OLDEST_BINARY_DECLARATION)?
            .trim()
            .parse()
            .ok()
    })
    .max()
    .unwrap_or(0)
}

/// Applies the migrations on a dedicated connection: after a failure, a pooled connection would be
/// returned with the advisory lock still held. Returns the applied migrations that this binary does
/// not know.
async fn apply(
    database: &Database,
    migrator: &Migrator,
    owner: &str,
    known: i64,
) -> Result<Vec<NewerMigration>, MigrateError> {
    let newer = AssertSqlSafe(newer_migrations_query(owner));
    match database {
        Database::Postgres(pool) => {
            let mut connection = pool.acquire().await?.detach();
            // A migration may take longer than an ordinary statement; `MIGRATION_TIMEOUT` bounds
            // it.
            connection.execute("SET statement_timeout = 0").await?;
            migrator.run_direct(None, &mut connection, false).await?;
            let newer = sqlx::query_as(newer)
                .bind(known)
                .fetch_all(&mut connection)
                .await?;
            connection.close().await?;
            Ok(newer)
        }
        Database::Sqlite(sqlite) => {
            let mut connection = sqlite.writer.acquire().await?;
            migrator.run_direct(None, &mut *connection, false).await?;
            Ok(sqlx::query_as(newer)
                .bind(known)
                .fetch_all(&mut *connection)
                .await?)
        }
    }
}

/// Version and description of a migration.
type NewerMigration = (i64, String);

fn newer_migrations_query(owner: &str) -> String {
    format!(
        "SELECT version, description FROM {owner}_migrations WHERE version > $1 ORDER BY version"
    )
}

/// Checks that each unknown migration supports this binary. One without a declaration does not.
fn check_newer(newer: &[NewerMigration], owner: &str, known: i64) -> Result<(), String> {
    for (version, description) in newer {
        let oldest: Option<i64> = description
            .strip_prefix(OLDEST_BINARY_DESCRIPTION)
            .and_then(|oldest| oldest.parse().ok());
        if oldest.is_none_or(|oldest| oldest > known) {
            let minimum = oldest.unwrap_or(*version);
            return Err(format!(
                "the schema of {owner} has version {version}, which requires a binary that knows version {minimum} or later; \
                 this binary knows version {known}: start a newer binary"
            ));
        }
    }
    Ok(())
}

fn describe(error: &MigrateError, owner: &str) -> String {
    if let MigrateError::VersionMismatch(version) = error {
        format!(
            "migration {version} of {owner} was applied with a different text than this binary contains"
        )
    } else if let MigrateError::Dirty(version) = error {
        format!("migration {version} of {owner} was interrupted; see {owner}_migrations")
    } else {
        let text = error.to_string();
        let words: Vec<&str> = text.split_whitespace().collect();
        format!("the migrations of {owner} fail: {}", words.join(" "))
    }
}
