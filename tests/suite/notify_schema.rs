//! A release and its successor on one schema: the tables have migrations that the running program
//! does not know.

use postern_store::database::Migrations;
use postern_store::database::testing::both;

use crate::notify_cluster::{NotifyCluster, UNKNOWN_ID};

/// Migration of the next release.
const EXPANDED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(
        1000,
        "ALTER TABLE notify_queue ADD COLUMN tenant TEXT; ALTER TABLE notify_result ADD COLUMN cost BIGINT",
    )],
    sqlite: &[(
        1000,
        "ALTER TABLE notify_queue ADD COLUMN tenant TEXT; ALTER TABLE notify_result ADD COLUMN cost INTEGER",
    )],
};

/// Migration of the release after that.
const CONTRACTED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(1001, DROPPED)],
    sqlite: &[(1001, DROPPED)],
};
const DROPPED: &str = "-- oldest-binary: 1000\nALTER TABLE notify_result DROP COLUMN detail";

#[tokio::test]
async fn older_release_works_until_a_migration_excludes_it() {
    for database in both().await {
        let cluster = NotifyCluster::over(&database.url, "").await;
        let replica = cluster.replica().await;
        cluster.deliver(&replica, "before").await;
        let migrated = database.database.migrate(&EXPANDED).await;
        migrated.expect("the next release has migrated");
        cluster.deliver(&replica, "beside").await;
        replica.stop().await;
        let replica = cluster.replica().await;
        cluster.deliver(&replica, "started-again").await;

        let migrated = database.database.migrate(&CONTRACTED).await;
        migrated.expect("the release after migrates");
        let refused = "the schema of postern_notify has version 1001, which requires a binary that knows version 1000 or later";
        cluster.wait_until_not_ready(&replica, refused).await;
        let ended = cluster.tool(&[]).await;
        assert!(ended.expect(69, 1)[0].contains(refused), "a start");
        let ended = cluster.tool(&["show", UNKNOWN_ID]).await;
        assert!(ended.expect(69, 1)[0].contains(refused), "a tool");
        drop(replica);
    }
}
