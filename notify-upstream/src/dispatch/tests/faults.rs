//! What becomes of a row when the store does not write how its attempt completed.

use futures_util::FutureExt;
use postern_common::database::{Database, PostgresTransaction};
use sqlx::{Executor, Sqlite, Transaction};

use super::*;
use crate::testing::execute;

/// From now on the store refuses such a change, until what is returned is executed.
async fn refuse(database: &Database, change: &str, table: &str, when: &str) -> String {
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
async fn what_cannot_be_handed_back_at_the_stop_is_rescued() {
    for (store, test) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let id = rig.accept(Priority::Normal).await;
        rig.stop.cancel();
        let end = refuse(
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
async fn what_is_handed_back_at_the_stop_is_left_to_others() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 2).await;
        for _ in 0..3 {
            rig.accept(Priority::Normal).await;
        }
        rig.dispatcher.scan_lanes().await.expect("looks");
        assert_eq!(rig.dispatcher.pass().await.expect("claims"), 2);
        rig.stop.cancel();
        rig.settle().await;
        assert_eq!(rig.dispatcher.pass().await.expect("claims"), 0);
        assert_eq!(rig.script.calls(), []);
        let mut next = TestReplica::new(&store, &clock(), 8).await;
        assert_eq!(next.step().await, 3);
    }
}

#[tokio::test]
async fn an_identity_that_was_lost_claims_nothing_until_there_is_another() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let id = rig.accept(Priority::Normal).await;
        execute(&test.database, "UPDATE notify_worker SET seen_at = 0").await;
        let end = refuse(&test.database, "INSERT", "notify_worker", "NEW.id > 0").await;
        rig.workers
            .step()
            .await
            .expect_err("lost, and no other is to be had");
        rig.dispatcher.scan_lanes().await.expect("looks");
        assert_eq!(rig.dispatcher.pass().await.expect("claims"), 0);
        execute(&test.database, &end).await;
        rig.workers.step().await.expect("another");
        assert_eq!((rig.step().await, rig.script.calls()), (1, vec![id]));
    }
}

#[tokio::test]
async fn a_row_whose_result_is_refused_is_taken_over() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        rig.script.can_be_asked();
        let id = rig.accept(Priority::Normal).await;
        let end = refuse(&test.database, "INSERT", "notify_result", "NEW.kind = 2").await;
        rig.step().await;
        execute(&test.database, &end).await;
        assert_eq!(rig.view(id).await["status"], "QUEUED");
        rig.workers.step().await.expect("renews");
        rig.step().await;
        let view = rig.view(id).await;
        assert_eq!(
            (&view["status"], rig.script.calls()),
            (&"SENT".into(), vec![id]),
            "{view}"
        );
    }
}

/// From now on the store has no room for more, until what is returned is executed.
async fn fill(database: &Database) -> &'static str {
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
async fn a_full_disk_refuses_and_loses_nothing_and_is_forgotten_once_there_is_room() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 500).await;
        let end = fill(&test.database).await;
        // What room is left in the pages that there are is still given.
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
        rig.workers.step().await.expect("renews");
        accepted.push(rig.accept(Priority::Normal).await);
        while rig.step().await > 0 {}
        for id in &accepted {
            assert_eq!(rig.view(*id).await["status"], "SENT", "{}", test.url);
        }
    }
}

/// While it lives no result is written.
enum Held {
    Postgres(PostgresTransaction),
    Sqlite(Transaction<'static, Sqlite>),
}

async fn hold_results(database: &Database) -> Held {
    match database {
        Database::Postgres(pool) => {
            let mut held = pool.begin().await.expect("begins");
            held.execute("LOCK TABLE notify_result IN EXCLUSIVE MODE")
                .await
                .expect("locks");
            Held::Postgres(held)
        }
        Database::Sqlite(sqlite) => Held::Sqlite(sqlite.begin().await.expect("begins")),
    }
}

impl Held {
    /// Whether a write stands before it. SQLite's only writer is in our hands, so whoever writes
    /// waits.
    async fn is_felt(&self, database: &Database) -> bool {
        let Database::Postgres(pool) = database else {
            return true;
        };
        let sql =
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'notify_result'::regclass
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
        sqlx::query_scalar(sql)
            .fetch_one(pool)
            .await
            .expect("tells")
    }

    async fn end(self) {
        match self {
            Self::Postgres(held) => held.rollback().await,
            Self::Sqlite(held) => held.rollback().await,
        }
        .expect("ends");
    }
}

#[tokio::test]
async fn a_permit_is_free_only_when_the_result_is_durable() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 1).await;
        let ids = [
            rig.accept(Priority::Normal).await,
            rig.accept(Priority::Normal).await,
        ];
        rig.dispatcher.scan_lanes().await.expect("looks");
        rig.dispatcher.pass().await.expect("claims");
        rig.runner.wait_until_idle().await;
        let permits = rig.dispatch_state.channel(Channel::Email).permits().clone();
        let held = hold_results(&test.database).await;
        let mut write = Box::pin(rig.finisher.drain());
        loop {
            assert!(
                (&mut write).now_or_never().is_none(),
                "the write is in flight"
            );
            assert_eq!(permits.in_use(), 1);
            if held.is_felt(&test.database).await {
                break;
            }
        }
        assert_eq!(
            rig.dispatcher.pass().await.expect("claims"),
            0,
            "nothing takes its place"
        );
        assert_eq!((permits.in_use(), rig.script.calls()), (1, vec![ids[0]]));
        held.end().await;
        assert_eq!((write.await, permits.in_use()), (1, 0));
        rig.step().await;
        assert_eq!(rig.script.calls(), ids);
    }
}

#[tokio::test]
async fn rows_that_share_a_place_are_claimed_one_after_another() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 2).await;
        for _ in 0..5 {
            rig.accept(Priority::Normal).await;
        }
        execute(&test.database, "UPDATE notify_queue SET ord = 5").await;
        rig.dispatcher.scan_lanes().await.expect("looks");
        for sent in [2, 4, 5] {
            rig.dispatcher.pass().await.expect("claims");
            rig.settle().await;
            assert_eq!(rig.script.calls().len(), sent, "without another look");
        }
    }
}
