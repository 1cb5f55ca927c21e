//! Tests of behaviour that both stores share.

mod connect;
mod outage;

use super::*;

type Steps = &'static [(i64, &'static str)];

/// Migrations whose text is the same in both dialects.
const fn migrations(owner: &'static str, steps: Steps) -> Migrations {
    Migrations {
        owner,
        postgres: steps,
        sqlite: steps,
    }
}

const fn second(steps: Steps) -> Migrations {
    migrations("postern_second", steps)
}

const SECOND_A: (i64, &str) = (1, "CREATE TABLE second_a (id BIGINT)");
const SECOND_B: (i64, &str) = (2, "CREATE TABLE second_b (id BIGINT)");

const FIRST: Migrations = migrations(
    "postern_first",
    &[(
        1,
        "CREATE TABLE first_note (id BIGINT PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    )],
);
const SECOND: Migrations = second(&[SECOND_A, SECOND_B]);
const SECOND_OLDER: Migrations = second(&[SECOND_A]);
const SECOND_EDITED: Migrations = second(&[(1, "CREATE TABLE other (id BIGINT)"), SECOND_B]);
/// One migration of a later release.
const SECOND_EXPANDED: Migrations = second(&[(3, "ALTER TABLE second_a ADD COLUMN note TEXT")]);
const SECOND_CONTRACTED: Migrations = second(&[(
    4,
    "-- Nobody reads it any more.\n-- oldest-binary: 3\nDROP TABLE second_b",
)]);
const BROKEN: Migrations = migrations(
    "postern_broken",
    &[(1, "CREATE TABLE broken (id BIGINT); SELECT * FROM nowhere")],
);

/// Executes a statement and returns its error, if it fails.
async fn execute(database: &Database, sql: &'static str) -> Option<sqlx::Error> {
    with_dialect!(database.writer(), pool => sqlx::query(sql).execute(pool).await.err())
}

async fn open(url: &str) -> Result<Database, Exit> {
    Database::open(url, DatabaseOptions::new("test")).await
}

/// Returns the message of the rejection, which has one line.
#[track_caller]
fn rejected<T>(outcome: Result<T, Exit>, status: u8) -> String {
    let exit = outcome.err().expect("rejected");
    assert_eq!(exit.status(), status, "{exit}");
    assert!(!exit.message().contains('\n'), "{exit}");
    exit.message().to_owned()
}

#[tokio::test]
async fn two_services_share_a_database_and_restart_changes_nothing() {
    for test in testing::both().await {
        for _ in 0..2 {
            for service in [&FIRST, &SECOND] {
                let migrated = test.database.migrate(service).await;
                migrated.expect("each has its own table of migrations");
            }
        }
        test.database.ping().await.expect("answers");
    }
}

#[tokio::test]
async fn verification_of_the_schema_changes_nothing() {
    for test in testing::both().await {
        let verify = async |migrations| test.database.verify_schema(migrations).await;
        let migrate = async |migrations| {
            let migrated = test.database.migrate(migrations).await;
            migrated.expect("migrated");
        };
        let lacking = async |migrations| {
            for _ in 0..2 {
                let reason = rejected(verify(migrations).await, 69);
                assert!(reason.contains("lacks migrations"), "{reason}");
            }
        };
        lacking(&SECOND).await;
        migrate(&SECOND).await;
        verify(&SECOND).await.expect("it is up to date");
        lacking(&SECOND_EXPANDED).await;
        migrate(&SECOND_EXPANDED).await;
        verify(&SECOND).await.expect("the schema is supported");
        migrate(&SECOND_CONTRACTED).await;
        let reason = rejected(verify(&SECOND).await, 69);
        assert!(reason.contains("start a newer binary"), "{reason}");
    }
}

#[tokio::test]
async fn command_creates_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("none.db");
    let url = format!("sqlite://{}", file.display());
    let opened = Database::open(&url, DatabaseOptions::for_command("test")).await;
    let reason = rejected(opened, 69);
    assert!(reason.contains("does not exist"), "{reason}");
    assert!(!file.exists());
}

#[tokio::test]
async fn concurrent_replicas_migrate_once() {
    let test = testing::postgres().await;
    let start = |_| {
        let url = test.url.clone();
        tokio::spawn(async move { open(&url).await?.migrate(&SECOND).await })
    };
    for replica in futures_util::future::join_all((0..8).map(start)).await {
        replica.expect("no panic").expect("migrated");
    }
}

#[tokio::test]
async fn edited_or_undeclared_newer_migration_is_rejected() {
    for test in testing::both().await {
        let migrate = async |migrations| test.database.migrate(migrations).await;
        migrate(&SECOND).await.expect("fresh");
        let reason = rejected(migrate(&SECOND_EDITED).await, 69);
        let different = "migration 1 of postern_second was applied with a different text";
        assert!(reason.contains(different), "{reason}");
        let sql = "UPDATE postern_second_migrations SET description = 'by another hand' WHERE version = 2";
        assert!(execute(&test.database, sql).await.is_none());
        let same = migrate(&SECOND).await;
        same.expect("the binary that has the migration is accepted");
        let reason = rejected(migrate(&SECOND_OLDER).await, 69);
        let required = "requires a binary that knows version 2 or later";
        assert!(reason.contains(required), "{reason}");
    }
}

#[tokio::test]
async fn failed_migration_is_rolled_back_and_releases_the_lock() {
    for test in testing::both().await {
        let reason = rejected(test.database.migrate(&BROKEN).await, 69);
        let parts = ["of postern_broken fail: ", "migration 1", "nowhere"];
        assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
        let other = test.database.migrate(&FIRST).await;
        other.expect("the lock is free");
        let left = execute(&test.database, "SELECT 1 FROM broken").await;
        left.expect("rolled back");
    }
}

#[tokio::test]
async fn unavailable_store_is_reported_without_the_password() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").port()
    };
    let postgres = format!("postgres://postern:hunter2@127.0.0.1:{closed}/postern?sslmode=disable");
    let label =
        format!("database postgres://postern@127.0.0.1:{closed}/postern is not available: ");
    for (url, status, beginning, part) in [
        (&*postgres, 69, &*label, "refused"),
        (
            "mysql://a:hunter2@h/x",
            64,
            "database",
            "must begin with postgres://",
        ),
        (
            "sqlite:///proc/nowhere/a.db",
            69,
            "database",
            "cannot create the file",
        ),
        ("sqlite::memory:", 64, "database", "must name a file"),
    ] {
        let reason = rejected(open(url).await, status);
        assert!(
            reason.starts_with(beginning) && reason.contains(part),
            "{reason}"
        );
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}

#[tokio::test]
async fn sqlite_file_is_private_and_durable() {
    use std::os::unix::fs::PermissionsExt;
    let test = testing::sqlite().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let path = std::path::PathBuf::from(test.url.trim_start_matches("sqlite://"));
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&path.with_extension("db-wal")), 0o600);
    assert_eq!(mode(path.parent().expect("a folder")), 0o700);
    let writer = &sqlite(&test).writer;
    for (pragma, expected) in [
        // FULL
        ("PRAGMA synchronous", 2),
        ("PRAGMA foreign_keys", 1),
        // In memory
        ("PRAGMA temp_store", 2),
        ("PRAGMA busy_timeout", 5000),
    ] {
        let set: i64 = sqlx::query_scalar(pragma)
            .fetch_one(writer)
            .await
            .expect("answers");
        assert_eq!(set, expected, "{pragma}");
    }
    let journal = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(writer);
    let journal: String = journal.await.expect("answers");
    assert_eq!(journal, "wal");
}

fn sqlite(test: &testing::TestDatabase) -> &Sqlite {
    match &test.database {
        Database::Sqlite(sqlite) => sqlite,
        Database::Postgres(_) => panic!("SQLite"),
    }
}

#[tokio::test]
async fn readers_see_committed_rows_and_cannot_write() {
    let test = testing::sqlite().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let sqlite = sqlite(&test);
    let count = async || {
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM first_note");
        count.fetch_one(&sqlite.readers).await.expect("reads")
    };
    let mut transaction = sqlite.begin().await.expect("begins");
    let insert = || sqlx::query("INSERT INTO first_note (id, text) VALUES (1, 'a')");
    let inserted = insert().execute(&mut *transaction).await;
    inserted.expect("inserted");
    assert_eq!(count().await, 0, "not committed yet");
    transaction.commit().await.expect("committed");
    assert_eq!(count().await, 1);
    let read_only = insert().execute(&sqlite.readers).await;
    read_only.expect_err("a reader does not write");
    let error = insert().execute(&sqlite.writer).await;
    let error = error.expect_err("the key is taken");
    let is_taken = is_unique_violation(&error) && !is_unavailable(&error);
    assert!(is_taken, "{error}");
}
