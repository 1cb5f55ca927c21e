//! Notifications in several databases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use postern_common::database::Database;
use postern_common::database::testing::{TestDatabase, postgres};
use postern_tests::program::Ended;
use serde_json::{Value, json};
use sqlx::postgres::PgListener;
use sqlx::{Executor, Row};

use crate::notify_cluster::{NotifyCluster, Replica};
use crate::notify_postgres::OwnPostgres;

const SETTINGS: &str = "[queue]\nsms_permits = 16";
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the number of the shard in an id: that of one of two shards follows from the version.
fn shard_of(id: &str) -> usize {
    match id.as_bytes()[14] {
        b'7' => 0,
        b'8' => 1,
        version => panic!("version {version} in {id}"),
    }
}

/// Creates two databases, and a cluster over the first.
async fn two_databases() -> ([TestDatabase; 2], NotifyCluster) {
    let databases = [postgres().await, postgres().await];
    let cluster = NotifyCluster::over(&databases[0].url, SETTINGS).await;
    (databases, cluster)
}

fn urls(databases: &[TestDatabase; 2]) -> [&str; 2] {
    databases.each_ref().map(|database| &*database.url)
}

/// Returns the number that a statement counts.
async fn count(database: &TestDatabase, sql: &'static str) -> i64 {
    let Database::Postgres(pool) = &database.database else {
        panic!("PostgreSQL")
    };
    let row = sqlx::query(sql).fetch_one(pool);
    row.await.expect("the tables exist").get(0)
}

/// Submits notifications with these keys, and returns their ids.
async fn post_keys(cluster: &NotifyCluster, replica: &Replica, keys: &[String]) -> Vec<String> {
    let mut ids = Vec::new();
    for key in keys {
        let id = cluster.try_post(&replica.url, key, "Ada", "NORMAL").await;
        ids.push(id.expect("accepted"));
    }
    ids
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("k{number}")).collect()
}

/// Returns the ids that the provider was called for, each with the number of calls.
fn calls(cluster: &NotifyCluster) -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    for call in cluster.provider.calls() {
        *calls.entry(call.id).or_default() += 1;
    }
    calls
}

/// Waits until a replica is ready, with these dependencies degraded.
async fn until_degraded(cluster: &NotifyCluster, replica: &Replica, expected: Value) {
    let polled = tokio::time::timeout(STEP_TIMEOUT, async {
        loop {
            let readiness = cluster.readiness(replica).await;
            if readiness["ready"] == true && readiness["degraded"] == expected {
                return;
            }
            cluster.provider.next_call_or_timeout().await;
        }
    });
    if polled.await.is_err() {
        panic!("not {expected}: {}", cluster.readiness(replica).await);
    }
}

/// Returns the output of a command that succeeds.
fn lines(ended: &Ended) -> Vec<&str> {
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    ended.stdout.lines().collect()
}

/// Returns the ids of all pages of the list, newest first.
async fn list_all(cluster: &NotifyCluster, replica: &Replica) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let (_, page) = cluster.list(replica, cursor.as_deref()).await;
        let page_ids = page["notifications"].as_array().expect("a page").iter();
        ids.extend(page_ids.map(|it| it["notificationId"].as_str().expect("an id").to_owned()));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return ids,
        }
    }
}

#[tokio::test]
async fn notifications_are_found_in_their_shards() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    cluster.use_shards(&urls, "");
    let (one, other) = (cluster.replica().await, cluster.replica().await);
    let keys = keys(20);
    let mut ids = post_keys(&cluster, &one, &keys).await;
    ids.extend(cluster.post_batch(&one, &["NORMAL"; 20]).await);
    let scheduled = [
        cluster.post_scheduled(&one).await,
        cluster.post_scheduled(&one).await,
    ];
    let of_shards =
        |ids: &[String]| -> BTreeSet<usize> { ids.iter().map(|id| shard_of(id)).collect() };
    assert_eq!(of_shards(&ids[..20]), [0, 1].into(), "with keys");
    assert_eq!(of_shards(&ids[20..]), [0, 1].into(), "without keys");
    assert_eq!(of_shards(&scheduled), [0, 1].into());
    let repeated = post_keys(&cluster, &other, &keys).await;
    assert_eq!(repeated, ids[..20], "a key has one result at every replica");
    for id in &ids {
        cluster.settled(&other, id, "SENT").await;
    }
    for id in &scheduled {
        let cancelled = cluster.cancel(&other, id).await;
        assert_eq!(cancelled["status"], "CANCELLED");
    }
    let expected: BTreeMap<_, _> = ids.iter().map(|id| (id.clone(), 1)).collect();
    assert_eq!(calls(&cluster), expected);
    ids.extend(scheduled);
    let listed = list_all(&cluster, &other).await;
    assert!(listed.is_sorted_by(|newer, older| newer > older));
    assert_eq!(
        listed.into_iter().collect::<BTreeSet<_>>(),
        ids.iter().cloned().collect()
    );
    for (shard, database) in databases.iter().enumerate() {
        let of_shard = ids.iter().filter(|id| shard_of(id) == shard);
        let expected = i64::try_from(of_shard.count()).expect("some");
        let stored = count(database, "SELECT count(*) FROM notify_record").await;
        assert_eq!(stored, expected, "shard {shard}");
    }
    for replica in [one, other] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
    for database in &databases {
        let workers = count(database, "SELECT count(*) FROM notify_worker").await;
        assert_eq!(workers, 0, "leases are retired");
    }
}

#[tokio::test]
async fn replica_delivers_for_the_shards_it_works_on() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    cluster.use_shards(&urls, ", work_on = [0]");
    let first = cluster.replica().await;
    let ids = cluster.post_batch(&first, &["NORMAL"; 8]).await;
    let (mine, theirs): (Vec<_>, Vec<_>) = ids.iter().partition(|id| shard_of(id) == 0);
    assert_eq!((mine.len(), theirs.len()), (4, 4));
    for id in mine {
        cluster.settled(&first, id, "SENT").await;
    }
    for id in &theirs {
        let status = cluster.status(&first.url, id).await;
        assert_eq!(status["status"], "QUEUED", "no replica works on shard 1");
    }
    cluster.use_shards(&urls, ", work_on = [1]");
    let second = cluster.replica().await;
    for id in &theirs {
        cluster.settled(&first, id, "SENT").await;
    }
    // The first replica wakes the second, which works on what is accepted there.
    let mut listener = PgListener::connect(urls[1]).await.expect("it connects");
    listener
        .listen("postern_notify_waiting")
        .await
        .expect("listens");
    let ids = cluster.post_batch(&first, &["NORMAL"; 2]).await;
    let woken = tokio::time::timeout(STEP_TIMEOUT, listener.recv()).await;
    woken.expect("a signal arrives").expect("connected");
    for id in &ids {
        cluster.settled(&first, id, "SENT").await;
    }
    assert!(calls(&cluster).values().all(|count| *count == 1));
    for replica in [first, second] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}

#[tokio::test]
async fn lost_shard_degrades_and_the_others_continue() {
    let mut servers = [OwnPostgres::start().await, OwnPostgres::start().await];
    let urls = servers.each_ref().map(|server| server.url().to_owned());
    let urls = [&*urls[0], &*urls[1]];
    let mut cluster = NotifyCluster::over(urls[0], SETTINGS).await;
    cluster.use_shards(&urls, "");
    let replica = cluster.replica().await;
    let before = cluster.post_batch(&replica, &["NORMAL"; 4]).await;
    for id in &before {
        cluster.settled(&replica, id, "SENT").await;
    }
    servers[1].kill().await;
    until_degraded(&cluster, &replica, json!(["database-1"])).await;
    for id in cluster.post_batch(&replica, &["NORMAL"; 4]).await {
        assert_eq!(shard_of(&id), 0);
        cluster.settled(&replica, &id, "SENT").await;
    }
    let lost = before
        .iter()
        .find(|id| shard_of(id) == 1)
        .expect("one of two");
    let status = cluster.status(&replica.url, lost).await;
    assert_eq!(status["code"], "shard_unavailable", "{status}");
    let (status, problem) = cluster.list(&replica, None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (503, &json!("shard_unavailable"))
    );
    let detail = "shard 1 of the database is not available";
    assert_eq!(problem["detail"], detail);
    // A replica that starts meanwhile serves the shards that it can open.
    let later = cluster.replica().await;
    until_degraded(&cluster, &later, json!(["database-1"])).await;
    let stopped = cluster.replica().await;
    assert_eq!(stopped.running.stop("TERM").await.status, Some(0));
    let ids = cluster.post_batch(&later, &["NORMAL"; 2]).await;
    assert!(ids.iter().all(|id| shard_of(id) == 0));
    let status = cluster.status(&later.url, lost).await;
    assert_eq!(
        (&status["code"], &status["detail"]),
        (&json!("shard_unavailable"), &json!(detail))
    );
    servers[1].restart().await;
    for replica in [&replica, &later] {
        cluster.settled(replica, lost, "SENT").await;
        until_degraded(&cluster, replica, json!([])).await;
        let ids = cluster.post_batch(replica, &["NORMAL"; 4]).await;
        assert_eq!(ids.iter().filter(|id| shard_of(id) == 1).count(), 2);
        for id in &ids {
            cluster.settled(replica, id, "SENT").await;
        }
    }
    for replica in [replica, later] {
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test]
async fn added_and_drained_shards_keep_keys_and_records() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    let single = cluster.replica().await;
    let old_keys = keys(20);
    let old = post_keys(&cluster, &single, &old_keys).await;
    for id in &old {
        cluster.settled(&single, id, "SENT").await;
    }
    assert_eq!(single.running.stop("TERM").await.status, Some(0));
    cluster.use_shards(&urls, "");
    let both = cluster.replica().await;
    assert_eq!(
        post_keys(&cluster, &both, &old_keys).await,
        old,
        "keys of before"
    );
    let new_keys: Vec<String> = (20..60).map(|number| format!("k{number}")).collect();
    let new = post_keys(&cluster, &both, &new_keys).await;
    let added = new.iter().filter(|id| shard_of(id) == 1).count();
    assert!(
        (5..36).contains(&added),
        "{added} of 40 are in the new shard"
    );
    assert_eq!(both.running.stop("TERM").await.status, Some(0));
    cluster.use_shards(&urls, ", accept = [1]");
    let drained = cluster.replica().await;
    assert_eq!(post_keys(&cluster, &drained, &old_keys).await, old);
    assert_eq!(post_keys(&cluster, &drained, &new_keys).await, new);
    for id in cluster.post_batch(&drained, &["NORMAL"; 3]).await {
        assert_eq!(shard_of(&id), 1);
    }
    for id in old.iter().chain(&new) {
        cluster.settled(&drained, id, "SENT").await;
    }
    assert!(calls(&cluster).values().all(|count| *count == 1));
    assert_eq!(drained.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn operators_see_and_change_all_shards() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    cluster.has_admin_routes = true;
    cluster.use_shards(&urls, "");
    let replica = cluster.replica().await;
    cluster.provider.respond_with(Some(422));
    let ids = cluster.post_batch(&replica, &["NORMAL"; 6]).await;
    for id in &ids {
        cluster.settled(&replica, id, "FAILED").await;
    }
    let listed = cluster.tool(&["dead", "list"]).await;
    let listed = lines(&listed);
    let found: BTreeSet<&str> = listed.iter().map(|line| &line[..36]).collect();
    assert_eq!(found, ids.iter().map(|id| &**id).collect());
    let shown = cluster.tool(&["show", &ids[1]]).await;
    assert_eq!(shown.status, Some(0));
    let limited = cluster.tool(&["dead", "list", "--limit", "3"]).await;
    assert_eq!(lines(&limited), listed[..3], "the oldest of both");
    cluster.provider.respond_with(None);
    let replayed = cluster
        .tool(&["dead", "replay", "--all", "--limit", "4"])
        .await;
    assert_eq!(lines(&replayed), ["4 queued again"]);
    for line in &listed[..4] {
        cluster.settled(&replica, &line[..36], "SENT").await;
    }
    let body = json!({ "selector": { "channel": "sms" } });
    let retried = cluster.change(&replica, "dead/retry", &body).await;
    assert_eq!(retried["count"], 2);
    for id in &ids {
        cluster.settled(&replica, id, "SENT").await;
    }
    let checked = cluster.tool(&["check", "--json"]).await;
    for shard in [0, 1] {
        let line = format!("database {shard}");
        assert!(checked.stdout.contains(&line), "{}", checked.stdout);
    }
    let name = "postern_notify_retained_since_timestamp_seconds";
    for shard in [0, 1] {
        let series = format!("{name}{{shard=\"{shard}\"}}");
        cluster.wait_for_metric(&replica, &series, 1).await;
    }
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn locked_shard_delays_neither_start_nor_stop() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    cluster.use_shards(&urls, "");
    let replica = cluster.replica().await;
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    let Database::Postgres(pool) = &databases[1].database else {
        panic!("PostgreSQL")
    };
    // A migration, for which each process waits up to ten minutes.
    let mut migrating = pool.begin().await.expect("a transaction begins");
    let lock = "LOCK TABLE postern_notify_migrations IN ACCESS EXCLUSIVE MODE";
    migrating.execute(lock).await.expect("locked");
    let replica = cluster.replica().await;
    until_degraded(&cluster, &replica, json!(["database-1"])).await;
    for id in cluster.post_batch(&replica, &["NORMAL"; 2]).await {
        assert_eq!(shard_of(&id), 0);
        cluster.settled(&replica, &id, "SENT").await;
    }
    // The attempt that the start abandoned, and the next one.
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let attempts = async {
        while count(&databases[1], waiting).await < 2 {
            cluster.provider.next_call_or_timeout().await;
        }
    };
    let attempts = tokio::time::timeout(STEP_TIMEOUT, attempts).await;
    attempts.expect("the shard is tried again");
    let stopping = Instant::now();
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    assert!(stopping.elapsed() < Duration::from_secs(20), "{stopping:?}");
    migrating.rollback().await.expect("rolled back");
}

#[tokio::test]
async fn wrong_list_of_shards_ends_the_start() {
    let (databases, mut cluster) = two_databases().await;
    let urls = urls(&databases);
    cluster.use_shards(&urls, "");
    let replica = cluster.replica().await;
    let ids = cluster.post_batch(&replica, &["NORMAL"; 2]).await;
    for id in &ids {
        cluster.settled(&replica, id, "SENT").await;
    }
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    let exchanged = [urls[1], urls[0]];
    // The same database with another text.
    let repeated = urls[0].replace("127.0.0.1", "localhost");
    assert_ne!(repeated, urls[0]);
    let malformed = "postgres://127.0.0.1:port/notify";
    for (urls, expected) in [
        (exchanged, "is shard 1: each database is in the list once"),
        (
            [urls[0], &repeated],
            "is shard 0: each database is in the list once",
        ),
        ([urls[0], malformed], "not a PostgreSQL URL"),
    ] {
        cluster.use_shards(&urls, "");
        let ended = cluster.tool(&["run"]).await;
        assert_eq!(ended.status, Some(64), "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
    cluster.use_shards(&exchanged, "");
    for arguments in [&["dead", "list"][..], &["check"]] {
        let ended = cluster.tool(arguments).await;
        assert_eq!(ended.status, Some(64), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("database.shards.0"),
            "{}",
            ended.stderr
        );
    }
    // One notification needs its shard only.
    cluster.use_shards(&[urls[0], "postgres://127.0.0.1:1/notify"], "");
    let (mine, lost): (Vec<_>, Vec<_>) = ids.iter().partition(|id| shard_of(id) == 0);
    let shown = cluster.tool(&["show", mine[0]]).await;
    assert_eq!(shown.status, Some(0), "{}", shown.stderr);
    for arguments in [&["show", lost[0]][..], &["dead", "list"]] {
        let ended = cluster.tool(arguments).await;
        assert_eq!(ended.status, Some(69), "{}", ended.stderr);
        assert!(ended.stderr.contains("127.0.0.1:1"), "{}", ended.stderr);
    }
}
