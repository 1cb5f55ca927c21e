//! Tests of rows whose results the store does not write.

use futures_util::FutureExt;
use postern_store::database::{Database, PostgresTransaction, SqliteTransaction};
use sqlx::Executor;

use super::*;
use crate::store::Receipt;
use crate::store::row::ReceiptKind;
use crate::testing::execute;

/// Makes the store reject changes until the returned statement is executed.
async fn reject_changes(database: &Database, change: &str, table: &str, when: &str) -> String {
    match database {
        Database::Postgres(_) => {
            let sql = format!(
                "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
                CREATE TRIGGER refuses BEFORE {change} ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refused()"
            );
            execute(database, &sql).await;
            format!("DROP TRIGGER refuses ON {table}")
        }
        Database::Sqlite(_) => {
            let sql = format!(
                "CREATE TRIGGER refuses BEFORE {change} ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'refused'); END"
            );
            execute(database, &sql).await;
            "DROP TRIGGER refuses".to_owned()
        }
    }
}

#[tokio::test]
async fn row_not_released_at_stop_is_recovered() {
    for (store, test) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let id = rig.accept(Priority::Normal).await;
        rig.stop.cancel();
        let end = reject_changes(
            &test.database,
            "UPDATE",
            "notify_queue",
            "NEW.worker IS NULL",
        )
        .await;
        rig.step().await;
        execute(&test.database, &end).await;
        rig.workers.retire_all().await;
        let mut next = TestReplica::new(&store, &clock, 8).await;
        next.step().await;
        assert_eq!(
            (next.script.calls(), &next.view(id).await["status"]),
            (vec![id], &"SENT".into())
        );
    }
}

#[tokio::test]
async fn lost_lease_claims_nothing_until_replaced() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let id = rig.accept(Priority::Normal).await;
        execute(&test.database, "UPDATE notify_worker SET seen_at = 0").await;
        let end = reject_changes(&test.database, "INSERT", "notify_worker", "NEW.id > 0").await;
        rig.workers.step().await.expect_err("the lease is lost");
        rig.dispatcher.poll().await.expect("no error");
        assert_eq!(rig.dispatcher.claim_available().await.expect("no error"), 0);
        execute(&test.database, &end).await;
        rig.workers.step().await.expect("another");
        assert_eq!((rig.step().await, rig.script.calls()), (1, vec![id]));
    }
}

#[tokio::test]
async fn row_with_rejected_result_is_taken_over() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let id = rig.accept(Priority::Normal).await;
        let end = reject_changes(&test.database, "INSERT", "notify_result", "NEW.kind = 2").await;
        rig.step().await;
        execute(&test.database, &end).await;
        assert_eq!(rig.view(id).await["status"], "QUEUED");
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.step().await;
        let view = rig.view(id).await;
        assert_eq!(
            (&view["status"], rig.script.calls()),
            (&"SENT".into(), vec![id, id]),
            "{view}"
        );
    }
}

#[tokio::test]
async fn receipt_proves_that_the_provider_has_the_message() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut dead = TestReplica::new(&store, &clock, 8).await;
        let _forever = dead.script.hold();
        let id = dead.accept(Priority::Normal).await;
        dead.dispatcher.claim_available().await.expect("no error");
        while dead.script.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        let mut next = TestReplica::new(&store, &clock, 8).await;
        for _ in 0..4 {
            clock.advance(Duration::from_secs(3));
            next.workers.step().await.expect("lease renewal succeeds");
        }
        let receipt = Receipt {
            provider: "twilio".to_owned(),
            event_id: "SM1/queued".to_owned(),
            id,
            kind: ReceiptKind::Sent,
            at: START,
            code: None,
            detail: None,
        };
        store.save_receipts(&[receipt]).await.expect("no error");
        next.step().await;
        assert_eq!(next.view(id).await["status"], "SENT");
        assert!(next.script.calls().is_empty(), "it is not sent again");
    }
}

/// Makes the store report a full disk until the returned statement is executed.
async fn fill_disk(database: &Database) -> &'static str {
    match database {
        Database::Postgres(_) => {
            let sql = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE 'no room' USING ERRCODE = 'disk_full'; END $$;
                CREATE TRIGGER fills BEFORE INSERT ON notify_record FOR EACH ROW EXECUTE FUNCTION no_room()";
            execute(database, sql).await;
            "DROP TRIGGER fills ON notify_record"
        }
        Database::Sqlite(_) => {
            execute(database, "PRAGMA max_page_count = 1").await;
            "PRAGMA max_page_count = 1000000"
        }
    }
}

#[tokio::test]
async fn full_disk_rejects_and_recovers_without_loss() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 500).await;
        let end = fill_disk(&test.database).await;
        // Free space in existing pages can still be used.
        let mut accepted = Vec::new();
        let refused = loop {
            match rig.submit(draft(Priority::Normal), None).await {
                Ok(answer) => accepted.push(answer.id),
                Err(problem) => break problem,
            }
        };
        assert_eq!(
            (refused.code(), accepted.len() < 500),
            (Code::Unavailable, true)
        );
        execute(&test.database, end).await;
        rig.workers.step().await.expect("lease renewal succeeds");
        accepted.push(rig.accept(Priority::Normal).await);
        while rig.step().await > 0 {}
        for id in &accepted {
            assert_eq!(rig.view(*id).await["status"], "SENT", "{}", test.url);
        }
    }
}

/// A lock that blocks all result writes while it is held.
enum ResultLock {
    Postgres(PostgresTransaction),
    Sqlite(SqliteTransaction),
}

async fn lock_results(database: &Database) -> ResultLock {
    match database {
        Database::Postgres(pool) => {
            let mut held = pool.begin().await.expect("a transaction begins");
            held.execute("LOCK TABLE notify_result IN EXCLUSIVE MODE")
                .await
                .expect("the lock is acquired");
            ResultLock::Postgres(held)
        }
        Database::Sqlite(sqlite) => {
            ResultLock::Sqlite(sqlite.begin().await.expect("a transaction begins"))
        }
    }
}

impl ResultLock {
    /// Returns whether a write waits for the lock. This test holds the only writer of SQLite, so
    /// any writer waits.
    async fn blocks_a_writer(&self, database: &Database) -> bool {
        let Database::Postgres(pool) = database else {
            return true;
        };
        let sql =
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'notify_result'::regclass
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
        sqlx::query_scalar(sql)
            .fetch_one(pool)
            .await
            .expect("publishing succeeds")
    }

    async fn end(self) {
        match self {
            Self::Postgres(held) => held.rollback().await,
            Self::Sqlite(held) => held.rollback().await,
        }
        .expect("the session ends");
    }
}

#[tokio::test]
async fn permit_is_released_when_the_result_is_durable() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 1).await;
        let ids = [
            rig.accept(Priority::Normal).await,
            rig.accept(Priority::Normal).await,
        ];
        rig.dispatcher.poll().await.expect("no error");
        rig.dispatcher.claim_available().await.expect("no error");
        rig.runner.wait_until_idle().await;
        let permits = rig.dispatch_state.channel(Channel::Email).permits().clone();
        let held = lock_results(&test.database).await;
        let mut write = Box::pin(rig.result_writer.drain());
        loop {
            assert!(
                (&mut write).now_or_never().is_none(),
                "the write is in flight"
            );
            assert_eq!(permits.in_use(), 1);
            if held.blocks_a_writer(&test.database).await {
                break;
            }
        }
        assert_eq!(
            rig.dispatcher.claim_available().await.expect("no error"),
            0,
            "the permit is still held"
        );
        assert_eq!((permits.in_use(), rig.script.calls()), (1, vec![ids[0]]));
        held.end().await;
        assert_eq!((write.await, permits.in_use()), (1, 0));
        rig.step().await;
        assert_eq!(rig.script.calls(), ids);
    }
}
