//! What becomes of a row when the store does not write how its attempt ended.

use postern_common::database::Database;

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
        let mut rig = Rig::new(&store, &clock, 8).await;
        let id = rig.accept(Priority::Normal).await;
        rig.stop.begin();
        let end = refuse(&test.database, "UPDATE", "notify_queue", "NEW.worker IS NULL").await;
        rig.step().await;
        execute(&test.database, &end).await;
        rig.workers.leave().await;
        let mut next = Rig::new(&store, &clock, 8).await;
        next.step().await;
        assert_eq!((next.script.calls(), &next.view(id).await["status"]), (vec![id], &"SENT".into()));
    }
}

#[tokio::test]
async fn a_row_whose_result_is_refused_is_taken_over() {
    for (store, test) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 8).await;
        rig.script.can_be_asked();
        let id = rig.accept(Priority::Normal).await;
        let end = refuse(&test.database, "INSERT", "notify_result", "NEW.kind = 2").await;
        rig.step().await;
        execute(&test.database, &end).await;
        assert_eq!(rig.view(id).await["status"], "QUEUED");
        rig.workers.step().await.expect("renews");
        rig.step().await;
        let view = rig.view(id).await;
        assert_eq!((&view["status"], rig.script.calls()), (&"SENT".into(), vec![id]), "{view}");
    }
}
