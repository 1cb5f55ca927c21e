use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, Executor, SqlSafeStr};

use super::{Database, postgres};
use crate::exit::Exit;

/// How long all of a service's migrations may take together, and how long one waits for another
/// process's.
const DEADLINE: Duration = Duration::from_secs(600);

/// One service's tables, as steps in each dialect.
///
/// Several services may share one PostgreSQL database: each keeps its own ledger in a table named
/// `{owner}_migrations`, and begins the names of its own tables with its own prefix. A step is
/// never edited once it was released; its text is held against the ledger. A PostgreSQL step that
/// begins with `-- no-transaction` runs outside one.
///
/// Processes of several releases work on the same tables while one release replaces another, and
/// the older one may be started again. So a step only adds what older binaries need not know
/// (expand), and every binary works on tables that have steps after its own. A step that takes
/// something away (contract) comes in a later release, when no process is left that needs it, and
/// says so in its first lines: `-- oldest-binary: 7` means that a binary whose own last step is
/// before 7 is refused on these tables from then on. The ledger keeps that word, so that a binary
/// can obey steps that it has never seen.
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

/// What a step says of older binaries, in its first lines.
const OLDEST_BINARY: &str = "-- oldest-binary: ";
/// How the ledger keeps it, as the description of the step.
const LEDGER_WORD: &str = "oldest binary ";

pub(super) async fn run(database: &Database, migrations: &Migrations) -> Result<(), Exit> {
    let steps = steps(database, migrations);
    let migrator = migrator(migrations.owner, steps);
    let (owner, label, known) = (migrations.owner, database.label(), newest(steps));
    let outcome =
        tokio::time::timeout(DEADLINE, Box::pin(apply(database, &migrator, owner, known))).await;
    let what = match outcome {
        Ok(Ok(newer)) => return judge(&newer, owner, known).map_err(|what| refusal(&label, &what)),
        Ok(Err(error)) => describe(&error, owner),
        Err(_) => format!(
            "the migrations of {owner} did not finish within {} s",
            DEADLINE.as_secs()
        ),
    };
    Err(refusal(&label, &what))
}

/// Whether the store takes a write, and the tables, which other processes may have brought forward
/// meanwhile, are still ones that this binary works on. What is written is the ledger's newest row
/// that this binary knows, as it was.
pub(super) async fn still_fit(
    database: &Database,
    migrations: &Migrations,
) -> Result<Result<(), Exit>, sqlx::Error> {
    let (owner, known) = (migrations.owner, newest(steps(database, migrations)));
    let (write, newer) = (write_probe(owner), newer_steps(owner));
    let newer = match database {
        Database::Postgres(pool) => {
            let sql = AssertSqlSafe(format!("WITH written AS ({write} RETURNING 1) {newer}"));
            sqlx::query_as(sql).bind(known).fetch_all(pool).await?
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
    Ok(judge(&newer, owner, known).map_err(|what| refusal(&database.label(), &what)))
}

fn write_probe(owner: &str) -> String {
    format!("UPDATE {owner}_migrations SET execution_time = execution_time WHERE version = $1")
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

fn refusal(label: &str, what: &str) -> Exit {
    Exit::unavailable(format!("database {label}: {what}"))
}

fn migrator(owner: &str, steps: &'static [(i64, &'static str)]) -> Migrator {
    let mut oldest = 0;
    let migration = |(version, sql): &(i64, &'static str)| {
        oldest = oldest.max(oldest_binary(sql));
        let word = format!("{LEDGER_WORD}{oldest}");
        let outside = sql.starts_with("-- no-transaction");
        Migration::new(
            *version,
            word.into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            outside,
        )
    };
    let mut migrator = Migrator::with_migrations(steps.iter().map(migration).collect());
    // Steps that this binary has never seen are judged by their own word, in `judge`.
    migrator.set_ignore_missing(true);
    migrator.dangerous_set_table_name(format!("{owner}_migrations"));
    migrator
}

/// What a step says of older binaries; 0 where it says nothing.
fn oldest_binary(sql: &str) -> i64 {
    let head = sql.lines().take_while(|line| line.starts_with("--"));
    head.filter_map(|line| line.strip_prefix(OLDEST_BINARY)?.trim().parse().ok())
        .max()
        .unwrap_or(0)
}

/// Runs on a connection of its own: a failure would give it back to the pool with the advisory lock
/// still held. Returns the steps that the tables have and this binary does not know.
async fn apply(
    database: &Database,
    migrator: &Migrator,
    owner: &str,
    known: i64,
) -> Result<Vec<NewerStep>, MigrateError> {
    let newer = AssertSqlSafe(newer_steps(owner));
    match database {
        Database::Postgres(pool) => {
            let mut connection = pool.acquire().await?.detach();
            // A migration may take longer than a statement of the service; the deadline bounds it.
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

/// Version and description of a step.
type NewerStep = (i64, String);

fn newer_steps(owner: &str) -> String {
    format!(
        "SELECT version, description FROM {owner}_migrations WHERE version > $1 ORDER BY version"
    )
}

/// Each step that this binary does not know must let it work; one that says nothing does not.
fn judge(newer: &[NewerStep], owner: &str, known: i64) -> Result<(), String> {
    for (version, word) in newer {
        let oldest: Option<i64> = word
            .strip_prefix(LEDGER_WORD)
            .and_then(|oldest| oldest.parse().ok());
        if oldest.is_none_or(|oldest| oldest > known) {
            let least = oldest.unwrap_or(*version);
            return Err(format!(
                "the tables of {owner} have version {version}, for binaries that know version {least} or later; \
                 this one knows only up to {known}: start a newer binary"
            ));
        }
    }
    Ok(())
}

fn describe(error: &MigrateError, owner: &str) -> String {
    if let MigrateError::VersionMismatch(version) = error {
        format!("migration {version} of {owner} was applied with another text than this binary has")
    } else if let MigrateError::Dirty(version) = error {
        format!("migration {version} of {owner} was interrupted half-way; see {owner}_migrations")
    } else if let MigrateError::ExecuteMigration(cause, version) = error {
        format!(
            "migration {version} of {owner} fails: {}",
            postgres::one_line(cause)
        )
    } else if let MigrateError::Execute(cause) = error {
        format!(
            "the migrations of {owner} cannot run: {}",
            postgres::one_line(cause)
        )
    } else {
        format!("the migrations of {owner} cannot run: {error}")
    }
}
