//! Tests of behaviour that both stores share.

mod connect;
mod outage;

use super::*;

const FIRST: Migrations = Migrations {
    owner: "postern_first",
    postgres: &[(
        1,
        "CREATE TABLE first_note (id BIGINT PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    )],
    sqlite: &[(
        1,
        "CREATE TABLE first_note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT",
    )],
};
const SECOND: Migrations = Migrations {
    owner: "postern_second",
    postgres: &[
        (1, "CREATE TABLE second_a (id BIGINT)"),
        (2, "CREATE TABLE second_b (id BIGINT)"),
    ],
    sqlite: &[
        (1, "CREATE TABLE second_a (id INTEGER)"),
        (2, "CREATE TABLE second_b (id INTEGER)"),
    ],
};
const SECOND_OLDER: Migrations = Migrations {
    owner: "postern_second",
    postgres: &[(1, "CREATE TABLE second_a (id BIGINT)")],
    sqlite: &[(1, "CREATE TABLE second_a (id INTEGER)")],
};
/// The migrations of `SECOND` and one of a later release.
const SECOND_EXPANDED: Migrations = Migrations {
    owner: "postern_second",
    postgres: &[(3, "ALTER TABLE second_a ADD COLUMN note TEXT")],
    sqlite: &[(3, "ALTER TABLE second_a ADD COLUMN note TEXT")],
};
const SECOND_CONTRACTED: Migrations = Migrations {
    owner: "postern_second",
    postgres: &[(
        4,
        "-- Nobody reads it any more.\n-- oldest-binary: 3\nDROP TABLE second_b",
    )],
    sqlite: &[(
        4,
        "-- Nobody reads it any more.\n-- oldest-binary: 3\nDROP TABLE second_b",
    )],
};
const SECOND_EDITED: Migrations = Migrations {
    owner: "postern_second",
    postgres: &[
        (1, "CREATE TABLE other (id BIGINT)"),
        (2, "CREATE TABLE second_b (id BIGINT)"),
    ],
    sqlite: &[
        (1, "CREATE TABLE other (id INTEGER)"),
        (2, "CREATE TABLE second_b (id INTEGER)"),
    ],
};
const BROKEN: Migrations = Migrations {
    owner: "postern_broken",
    postgres: &[(1, "CREATE TABLE broken (id BIGINT); SELECT * FROM nowhere")],
    sqlite: &[(1, "CREATE TABLE broken (id INTEGER); SELECT * FROM nowhere")],
};

#[tokio::test]
async fn two_services_share_a_database_and_restart_changes_nothing() {
    for test in testing::both().await {
        for _ in 0..2 {
            test.database
                .migrate(&FIRST)
                .await
                .expect("the first service");
            test.database
                .migrate(&SECOND)
                .await
                .expect("the second service");
        }
        test.database.ping().await.expect("answers");
    }
}

#[tokio::test]
async fn verification_of_the_schema_changes_nothing() {
    for test in testing::both().await {
        let verify = async |migrations| {
            let verified = test.database.verify_schema(migrations).await;
            verified.map_err(|exit| exit.message().to_owned())
        };
        for _ in 0..2 {
            let reason = verify(&SECOND).await.expect_err("there are no tables");
            assert!(reason.contains("lacks migrations"), "{reason}");
        }
        test.database.migrate(&SECOND).await.expect("fresh");
        verify(&SECOND).await.expect("it is up to date");
        for _ in 0..2 {
            let reason = verify(&SECOND_EXPANDED).await.expect_err("one is missing");
            assert!(reason.contains("lacks migrations"), "{reason}");
        }
        let expanded = test.database.migrate(&SECOND_EXPANDED).await;
        expanded.expect("the next release migrates");
        verify(&SECOND).await.expect("the schema is supported");
        let contracted = test.database.migrate(&SECOND_CONTRACTED).await;
        contracted.expect("a later release migrates");
        let reason = verify(&SECOND).await.expect_err("it is not supported");
        assert!(reason.contains("start a newer binary"), "{reason}");
    }
}

#[tokio::test]
async fn command_creates_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("none.db");
    let url = format!("sqlite://{}", file.display());
    let opened = Database::open(&url, DatabaseOptions::for_command("test")).await;
    let exit = opened.expect_err("there is no file");
    assert_eq!(exit.status(), 69);
    assert!(exit.message().contains("does not exist"), "{exit}");
    assert!(!file.exists());
}

#[tokio::test]
async fn concurrent_replicas_migrate_once() {
    let test = testing::postgres().await;
    let start = |_| {
        let url = test.url.clone();
        tokio::spawn(async move {
            let database = Database::open(&url, DatabaseOptions::new("replica")).await?;
            database.migrate(&SECOND).await
        })
    };
    for replica in futures_util::future::join_all((0..8).map(start)).await {
        replica.expect("no panic").expect("migrated");
    }
}

#[tokio::test]
async fn edited_migration_is_rejected() {
    for test in testing::both().await {
        test.database.migrate(&SECOND).await.expect("fresh");
        let exit = test
            .database
            .migrate(&SECOND_EDITED)
            .await
            .expect_err("an edited step");
        assert_eq!(exit.status(), 69);
        assert!(
            exit.message()
                .contains("migration 1 of postern_second was applied with a different text"),
            "{exit}"
        );
    }
}

#[tokio::test]
async fn newer_migration_without_declaration_is_rejected() {
    for test in testing::both().await {
        test.database.migrate(&SECOND).await.expect("fresh");
        let sql = "UPDATE postern_second_migrations SET description = 'by another hand' WHERE version = 2";
        match &test.database {
            Database::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop),
            Database::Sqlite(sqlite) => sqlx::query(sql).execute(&sqlite.writer).await.map(drop),
        }
        .expect("updated");
        test.database
            .migrate(&SECOND)
            .await
            .expect("the binary that has the migration is accepted");
        let exit = test
            .database
            .migrate(&SECOND_OLDER)
            .await
            .expect_err("the migration declares no binary");
        assert!(
            exit.message()
                .contains("requires a binary that knows version 2 or later"),
            "{exit}"
        );
    }
}

#[tokio::test]
async fn failed_migration_is_rolled_back_and_releases_the_lock() {
    for test in testing::both().await {
        let exit = test.database.migrate(&BROKEN).await.expect_err("nowhere");
        assert!(
            exit.message()
                .contains("migration 1 of postern_broken fails: "),
            "{exit}"
        );
        assert!(exit.message().contains("nowhere"), "{exit}");
        assert!(!exit.message().contains('\n'), "{exit}");
        test.database
            .migrate(&FIRST)
            .await
            .expect("the lock is free");
        let left = match &test.database {
            Database::Postgres(pool) => sqlx::query("SELECT 1 FROM broken")
                .execute(pool)
                .await
                .map(drop),
            Database::Sqlite(sqlite) => sqlx::query("SELECT 1 FROM broken")
                .execute(&sqlite.readers)
                .await
                .map(drop),
        };
        left.expect_err("rolled back");
    }
}

#[tokio::test]
async fn unavailable_store_is_reported_without_the_password() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").port()
    };
    let url = format!("postgres://postern:hunter2@127.0.0.1:{closed}/postern?sslmode=disable");
    let exit = Database::open(&url, DatabaseOptions::new("test"))
        .await
        .expect_err("no server listens");
    assert_eq!(exit.status(), 69);
    let expected =
        format!("database postgres://postern@127.0.0.1:{closed}/postern is not available: ");
    assert!(exit.message().starts_with(&expected), "{exit}");
    assert!(
        exit.message().contains("refused") && !exit.message().contains("hunter2"),
        "{exit}"
    );
    assert!(!exit.message().contains('\n'), "{exit}");

    let exit = Database::open("mysql://a:hunter2@h/x", DatabaseOptions::new("test"))
        .await
        .expect_err("no such store");
    assert_eq!(
        (exit.status(), exit.message().contains("hunter2")),
        (64, false)
    );
    let exit = Database::open("sqlite:///proc/nowhere/a.db", DatabaseOptions::new("test"))
        .await
        .expect_err("read-only");
    assert_eq!(exit.status(), 69);
    assert!(exit.message().contains("cannot create the file"), "{exit}");
    let exit = Database::open("sqlite::memory:", DatabaseOptions::new("test"))
        .await
        .expect_err("no file");
    assert_eq!(exit.status(), 64);
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
    let Database::Sqlite(sqlite) = &test.database else {
        panic!("SQLite")
    };
    let pragma = |name: &'static str| sqlx::query_scalar::<_, i64>(name).fetch_one(&sqlite.writer);
    assert_eq!(
        pragma("PRAGMA synchronous").await.expect("answers"),
        2,
        "FULL"
    );
    assert_eq!(pragma("PRAGMA foreign_keys").await.expect("answers"), 1);
    assert_eq!(
        pragma("PRAGMA temp_store").await.expect("answers"),
        2,
        "memory"
    );
    assert_eq!(pragma("PRAGMA busy_timeout").await.expect("answers"), 5000);
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&sqlite.writer)
        .await
        .expect("answers");
    assert_eq!(journal, "wal");
}

#[tokio::test]
async fn readers_see_committed_rows_and_cannot_write() {
    let test = testing::sqlite().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let Database::Sqlite(sqlite) = &test.database else {
        panic!("SQLite")
    };
    let count = || {
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM first_note").fetch_one(&sqlite.readers)
    };
    let mut transaction = sqlite.begin().await.expect("begins");
    let insert = "INSERT INTO first_note (id, text) VALUES (1, 'a')";
    sqlx::query(insert)
        .execute(&mut *transaction)
        .await
        .expect("inserted");
    assert_eq!(count().await.expect("reads"), 0, "not committed yet");
    transaction.commit().await.expect("committed");
    assert_eq!(count().await.expect("reads"), 1);
    sqlx::query(insert)
        .execute(&sqlite.readers)
        .await
        .expect_err("a reader does not write");
    let error = sqlx::query(insert)
        .execute(&sqlite.writer)
        .await
        .expect_err("the key is taken");
    assert!(
        is_unique_violation(&error) && !is_unavailable(&error),
        "{error}"
    );
}
