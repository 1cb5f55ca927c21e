//! Rolling restarts: processes of the version before go on working on the tables of the next.

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

/// What the first version writes when an attempt is over.
const FINISH_BY_THE_FIRST: &str =
    "INSERT INTO notify_result (id, attempt, kind, began_at, at, next_at, provider, code, detail)
    VALUES ('$id', 1, 2, 1, 2, NULL, 'smtp', NULL, '250 Ok')";

#[tokio::test]
async fn a_process_of_the_first_version_works_on_the_newest_tables() {
    for test in testing::both().await {
        test.database
            .migrate(&FIRST)
            .await
            .expect("the first version");
        let store = Store::open(&test.database, 4).await.expect("the newest");
        store.maintain(NOW, Timestamp(0)).await.expect("partitions");
        let batch = orders(0, 1);
        store.accept(&batch).await.expect("accepted");
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
fn a_step_only_adds() {
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
            // A table's storage parameters: rows and columns stay as they are, and nobody waits for
            // its lock.
            let words: Vec<_> = statement.split_whitespace().collect();
            let stores = matches!(
                words[..],
                ["ALTER", "TABLE", _, "SET", "(FILLFACTOR", "=", _]
            ) && !statement.contains(',');
            // The one index that another has replaced: (due, id) answers whatever (due) did.
            let replaced = statement == "DROP INDEX NOTIFY_DELAYED_DUE";
            assert!(
                adds || may_be_empty || waits_not || stores || replaced,
                "step {version}: {statement}"
            );
        }
    }
}

#[tokio::test]
async fn a_migration_that_would_make_others_wait_gives_up() {
    let test = testing::postgres().await;
    test.database
        .migrate(&FIRST)
        .await
        .expect("the first version");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let mut reader = pool.begin().await.expect("begins");
    reader
        .execute("SELECT count(*) FROM notify_result")
        .await
        .expect("reads");
    let began = Instant::now();
    let refused = Store::open(&test.database, 4)
        .await
        .expect_err("the lock is not to be had");
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
    reader.rollback().await.expect("ends");
    Store::open(&test.database, 4)
        .await
        .expect("the next start finds it free");
}
