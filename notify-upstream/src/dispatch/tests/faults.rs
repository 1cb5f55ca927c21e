//! Tests of rows whose results the store does not write.

use futures_util::FutureExt;
use postern_store::database::Database;

use super::*;
use crate::store::row::ReceiptKind;
use crate::testing::{execute, receipt};

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
        let when = "NEW.worker IS NULL";
        let end = reject_changes(&test.database, "UPDATE", "notify_queue", when).await;
        rig.step().await;
        execute(&test.database, &end).await;
        rig.workers.retire_all().await;
        let mut next = TestReplica::new(&store, &clock, 8).await;
        next.step().await;
        assert_eq!(next.script.calls(), [id]);
        assert_eq!(next.status(id).await, "SENT");
    }
}

#[tokio::test]
async fn lost_lease_claims_nothing_until_replaced() {
    for (mut rig, test) in replicas(8).await {
        let id = rig.accept(Priority::Normal).await;
        execute(&test.database, "UPDATE notify_worker SET seen_at = 0").await;
        let end = reject_changes(&test.database, "INSERT", "notify_worker", "NEW.id > 0").await;
        rig.workers.step().await.expect_err("the lease is lost");
        rig.poll().await;
        assert_eq!(rig.claim().await, 0);
        execute(&test.database, &end).await;
        rig.workers.step().await.expect("another");
        assert_eq!((rig.step().await, rig.script.calls()), (1, vec![id]));
    }
}

#[tokio::test]
async fn row_with_rejected_result_is_taken_over() {
    for (mut rig, test) in replicas(8).await {
        let id = rig.accept(Priority::Normal).await;
        let end = reject_changes(&test.database, "INSERT", "notify_result", "NEW.kind = 2").await;
        rig.step().await;
        execute(&test.database, &end).await;
        assert_eq!(rig.status(id).await, "QUEUED");
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.step().await;
        assert_eq!(rig.status(id).await, "SENT");
        assert_eq!(rig.script.calls(), [id, id]);
    }
}

#[tokio::test]
async fn receipt_proves_that_the_provider_has_the_message() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut dead = TestReplica::new(&store, &clock, 8).await;
        let _forever = dead.script.hold();
        let id = dead.accept(Priority::Normal).await;
        dead.claim().await;
        while dead.script.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        let mut next = TestReplica::new(&store, &clock, 8).await;
        for _ in 0..4 {
            next.advance(3).await;
        }
        let receipt = receipt(id, "SM1/queued", ReceiptKind::Sent);
        ok(store.save_receipts("twilio", &[receipt])).await;
        next.step().await;
        assert_eq!(next.status(id).await, "SENT");
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
    for (mut rig, test) in replicas(500).await {
        let end = fill_disk(&test.database).await;
        // Free space in existing pages can still be used.
        let mut accepted = Vec::new();
        let refused = loop {
            match rig.submit(draft(Priority::Normal), None).await {
                Ok(answer) => accepted.push(answer.id),
                Err(problem) => break problem,
            }
        };
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(accepted.len() < 500);
        execute(&test.database, end).await;
        rig.workers.step().await.expect("lease renewal succeeds");
        accepted.push(rig.accept(Priority::Normal).await);
        while rig.step().await > 0 {}
        for id in &accepted {
            assert_eq!(rig.status(*id).await, "SENT", "{}", test.url);
        }
    }
}

#[tokio::test]
async fn permit_is_released_when_the_result_is_durable() {
    let (store, test) = stores().await.swap_remove(0);
    let Database::Sqlite(sqlite) = &test.database else {
        panic!("SQLite")
    };
    let mut rig = TestReplica::new(&store, &clock(), 1).await;
    let ids = [
        rig.accept(Priority::Normal).await,
        rig.accept(Priority::Normal).await,
    ];
    rig.poll().await;
    rig.claim().await;
    rig.runner.wait_until_idle().await;
    let permits = rig.dispatch_state.channel(Channel::Email).permits.clone();
    // The only writer: the results wait for it.
    let held = sqlite.begin().await.expect("a transaction begins");
    let mut write = Box::pin(rig.result_writer.drain());
    assert!((&mut write).now_or_never().is_none(), "in flight");
    let claimed = ok(rig.dispatcher.claim_available()).await;
    assert_eq!(claimed, 0, "the permit is still held");
    assert_eq!((permits.in_use(), rig.script.calls()), (1, vec![ids[0]]));
    held.rollback().await.expect("the transaction ends");
    assert_eq!((write.await, permits.in_use()), (1, 0));
    rig.step().await;
    assert_eq!(rig.script.calls(), ids);
}
