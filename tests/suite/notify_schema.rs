//! A release beside the next: the tables have steps that the running program has never seen.

use postern_common::database::Migrations;
use postern_common::database::testing::both;

use crate::notify_stage::{Replica, Stage};

/// What the next release adds.
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

/// What the release after that takes away.
const CONTRACTED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(
        1001,
        "-- oldest-binary: 1000\nALTER TABLE notify_result DROP COLUMN detail",
    )],
    sqlite: &[(
        1001,
        "-- oldest-binary: 1000\nALTER TABLE notify_result DROP COLUMN detail",
    )],
};

async fn works(stage: &Stage, replica: &Replica, key: &str) {
    let id = stage
        .try_post(&replica.url, key, "Ada", "NORMAL")
        .await
        .expect("accepted");
    stage.settled(replica, &id, "SENT").await;
}

#[tokio::test]
async fn a_release_works_beside_the_next_and_is_refused_once_a_step_says_so() {
    for database in both().await {
        let stage = Stage::over(&database.url, "").await;
        let replica = stage.replica().await;
        works(&stage, &replica, "before").await;
        database
            .database
            .migrate(&EXPANDED)
            .await
            .expect("the next release has begun");
        works(&stage, &replica, "beside").await;
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
        let replica = stage.replica().await;
        works(&stage, &replica, "started-again").await;

        database
            .database
            .migrate(&CONTRACTED)
            .await
            .expect("the release after");
        let refused = "the tables of postern_notify have version 1001, for binaries that know version 1000 or later";
        let said = stage.not_ready(&replica).await;
        assert!(said.contains(refused), "{said}");
        let ended = stage.tool(&[]).await;
        assert!(ended.expect(69, 1)[0].contains(refused), "a start");
        let ended = stage.tool(&["dead", "list"]).await;
        assert!(ended.expect(69, 1)[0].contains(refused), "a tool");
        drop(replica);
    }
}
