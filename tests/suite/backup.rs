//! Backup and restore: a dump that is taken under load is restored into a new server.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::notify_cluster::{NotifyCluster, Replica};
use postern_harness::note;
use postern_harness::paths::repository;
use postern_harness::stores::OwnPostgres;

/// Two deliveries at a time, so that further notifications wait.
const SETTINGS: &str = "[queue]\nsms_permits = 2";

const DUMP: &str = r#"pg_dump --format=custom --file="$2" "$1""#;
const RESTORE: &str = r#"pg_restore --exit-on-error --no-owner --dbname="$1" "$2""#;

/// Runs a program of PostgreSQL with a URL and a file.
async fn run(command: &str, url: &str, file: &Path) {
    let script = format!("set -eu; . tests/services.sh; PATH=$(postgres_bin):$PATH; {command}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script, "backup", url]).arg(file);
    let output = bash.current_dir(repository()).output().await;
    let output = output.expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// What exists before the dump.
struct Before {
    sent: Vec<String>,
    dead: String,
    scheduled: String,
    waiting: Vec<String>,
}

/// Submits notifications of every state.
async fn prepare(cluster: &NotifyCluster, replica: &Replica) -> Before {
    let post = async |key: &str| cluster.accept(replica, key, "NORMAL").await;
    let mut sent = Vec::new();
    for number in 0..5 {
        let id = post(&format!("sent{number}")).await;
        cluster.settled(replica, &id, "SENT").await;
        sent.push(id);
    }
    cluster.provider.respond_with(Some(400));
    let dead = post("dead").await;
    cluster.settled(replica, &dead, "FAILED").await;
    cluster.provider.respond_with(None);
    let scheduled = cluster.post_scheduled(replica).await;
    cluster.provider.pause_responses();
    let mut waiting = Vec::new();
    for number in 0..20 {
        waiting.push(post(&format!("waiting{number}")).await);
    }
    Before {
        sent,
        dead,
        scheduled,
        waiting,
    }
}

/// Submits notifications until it is stopped, and returns how many were accepted.
async fn load(cluster: &NotifyCluster, replica: &Replica, stop: &CancellationToken) -> usize {
    let mut accepted = 0;
    for number in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let key = format!("load{number}");
        let id = cluster.try_post(replica, &key, "LOW").await;
        accepted += usize::from(id.is_some());
    }
    accepted
}

/// Takes a dump while notifications are accepted.
async fn dump_under_load(
    cluster: &NotifyCluster,
    replica: &Replica,
    url: &str,
) -> (PathBuf, TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("postern.dump");
    let stop = CancellationToken::new();
    let dump = async {
        run(DUMP, url, &file).await;
        stop.cancel();
    };
    let ((), accepted) = tokio::join!(dump, load(cluster, replica, &stop));
    assert!(accepted > 0, "notifications were accepted during the dump");
    (file, folder)
}

#[tokio::test]
async fn restored_dump_keeps_statuses_queue_and_dead_letters() {
    let server = OwnPostgres::start().await;
    let mut cluster = NotifyCluster::over(server.url(), SETTINGS).await;
    cluster.has_admin_routes = true;
    let mut replica = cluster.replica().await;
    let before = prepare(&cluster, &replica).await;
    let (file, _folder) = dump_under_load(&cluster, &replica, server.url()).await;
    // Sent after the dump: the restored queue has it again.
    let calls = cluster.provider.calls().len();
    cluster.provider.resume_responses();
    let last = before.waiting.last().expect("some wait");
    cluster.settled(&replica, last, "SENT").await;
    let after_dump = cluster.accept(&replica, "after", "LOW").await;
    replica.running.kill().await;
    server.kill().await;
    let sent_after_dump = cluster.provider.calls().len() - calls;

    let restored = OwnPostgres::start().await;
    run(RESTORE, restored.url(), &file).await;
    cluster.use_database(restored.url());
    let ended = cluster.tool(&["check"]).await;
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
    replica = cluster.replica().await;
    let sent = before.sent.iter().map(|id| (id, "SENT"));
    let others = [(&before.dead, "FAILED"), (&before.scheduled, "SCHEDULED")];
    for (id, status) in sent.chain(others) {
        assert_eq!(cluster.status(&replica, id).await["status"], status);
    }
    for id in &before.waiting {
        cluster.settled(&replica, id, "SENT").await;
    }
    let lost = cluster.status(&replica, &after_dump).await;
    assert_eq!(lost["code"], "not_found", "{lost}");
    let letters = cluster.read(&replica, "dead").await.to_string();
    assert!(letters.contains(&before.dead), "{letters}");
    let again = cluster.accept(&replica, "sent0", "NORMAL").await;
    assert_eq!(again, before.sent[0], "idempotency keys");
    let calls = cluster.provider.calls();
    let sends = |id: &String| calls.iter().filter(|call| call.id == *id).count();
    let (waiting, mut ids) = (before.waiting.len(), before.waiting.iter());
    note(&format!(
        "notify: restore of a dump: {sent_after_dump} calls after the dump, {waiting} waiting notifications"
    ));
    assert!(ids.all(|id| sends(id) > 1), "sent after the dump: again");
    for id in before.sent.iter().chain([&before.dead]) {
        assert_eq!(sends(id), 1, "finished before the dump: not again");
    }
    replica.stop().await;
    restored.stop().await;
}
