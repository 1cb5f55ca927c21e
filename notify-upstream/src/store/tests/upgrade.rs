//! Tests of rolling upgrades: processes of the previous release work on the tables of the next.

use std::time::{Duration, Instant};

use postern_common::database::Migrations;
use sqlx::Executor;

use super::*;
use crate::testing::execute;

const FIRST: Migrations = Migrations {
    postgres: MIGRATIONS.postgres.split_at(1).0,
    sqlite: MIGRATIONS.sqlite.split_at(1).0,
    ..MIGRATIONS
};

/// The statement with which the first release records a result.
const FINISH_BY_THE_FIRST: &str =
    "INSERT INTO notify_result (id, attempt, kind, began_at, at, next_at, provider, code, detail)
    VALUES ('$id', 1, 2, 1, 2, NULL, 'smtp', NULL, '250 Ok')";

#[tokio::test]
async fn first_release_works_on_the_newest_schema() {
    for test in testing::both().await {
        test.database
            .migrate(&FIRST)
            .await
            .expect("the first version");
        let store = Store::open(&test.database, 4).await.expect("the newest");
        store
            .maintain(NOW, Timestamp(0))
            .await
            .expect("partitions are created");
        let batch = orders(0, 1);
        store.accept(&batch).await.expect("no error");
        let id = batch[0].id;
        execute(
            &test.database,
            &format!("DELETE FROM notify_queue WHERE id = '{id}'"),
        )
        .await;
        execute(
            &test.database,
            &FINISH_BY_THE_FIRST.replace("$id", &id.to_string()),
        )
        .await;
        let known = snapshot(&store, id).await;
        let [HistoryEntry::Result(result)] = &known.history[..] else {
            panic!("{:?}", known.history)
        };
        assert_eq!(
            (result.kind, result.detail.as_deref(), result.address),
            (ResultKind::Sent, Some("250 Ok"), None)
        );
    }
}

#[test]
fn migrations_are_additive() {
    let later = MIGRATIONS
        .postgres
        .iter()
        .chain(MIGRATIONS.sqlite)
        .filter(|(version, _)| *version > 1);
    for (version, sql) in later {
        let lines = sql
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"));
        let text = lines.collect::<Vec<_>>().join(" ").to_uppercase();
        for statement in text
            .split(';')
            .map(str::trim)
            .filter(|statement| !statement.is_empty())
        {
            let adds =
                statement.starts_with("CREATE TABLE ") || statement.starts_with("CREATE INDEX ");
            let may_be_empty = statement.starts_with("ALTER TABLE ")
                && statement.contains(" ADD COLUMN ")
                && !["NOT NULL", "DEFAULT", "UNIQUE", "CHECK", "REFERENCES"]
                    .iter()
                    .any(|word| statement.contains(word));
            let waits_not = statement.starts_with("SET LOCAL LOCK_TIMEOUT");
            // Storage parameters change neither rows nor columns, and their lock does not block.
            let words: Vec<_> = statement.split_whitespace().collect();
            let stores = matches!(
                words[..],
                ["ALTER", "TABLE", _, "SET", "(FILLFACTOR", "=", _]
            ) && !statement.contains(',');
            // The one index that was replaced: (due, id) serves the queries of (due).
            let replaced = statement == "DROP INDEX NOTIFY_DELAYED_DUE";
            assert!(
                adds || may_be_empty || waits_not || stores || replaced,
                "step {version}: {statement}"
            );
        }
    }
}

#[tokio::test]
async fn migration_gives_up_instead_of_blocking() {
    let test = testing::postgres().await;
    test.database
        .migrate(&FIRST)
        .await
        .expect("the first version");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let mut reader = pool.begin().await.expect("a transaction begins");
    reader
        .execute("SELECT count(*) FROM notify_result")
        .await
        .expect("no error");
    let began = Instant::now();
    let refused = Store::open(&test.database, 4)
        .await
        .expect_err("the lock is held");
    assert!(
        refused
            .to_string()
            .contains("migration 2 of postern_notify fails"),
        "{refused}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    reader.rollback().await.expect("the session ends");
    Store::open(&test.database, 4)
        .await
        .expect("the lock is free at the next start");
}
