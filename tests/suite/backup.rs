//! Backup and restore: a dump that is taken under load is restored into a new server.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::notify_cluster::{NotifyCluster, Replica};
use postern_harness::note;
use postern_harness::stores::OwnPostgres;

/// Two deliveries at a time, so that further notifications wait.
const SETTINGS: &str = "[queue]\nsms_permits = 2";

const DUMP: &str = r#"
set -euo pipefail
. tests/services.sh
"$(postgres_bin)/pg_dump" --format=custom --file="$2" "$1"
"#;

const RESTORE: &str = r#"
set -euo pipefail
. tests/services.sh
"$(postgres_bin)/pg_restore" --exit-on-error --no-owner --dbname="$1" "$2"
"#;

async fn run(script: &str, url: &str, file: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new("bash")
        .args(["-c", script, "backup", url])
        .arg(file)
        .current_dir(root)
        .output()
        .await
        .expect("bash runs");
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
    let post = async |key: &str| {
        let id = cluster.try_post(&replica.url, key, "Ada", "NORMAL").await;
        id.expect("accepted")
    };
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
        let id = cluster.try_post(&replica.url, &key, "Ada", "LOW").await;
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
    let after_dump = cluster.try_post(&replica.url, "after", "Ada", "LOW").await;
    let after_dump = after_dump.expect("accepted");
    replica.running.kill().await;
    server.kill().await;
    let sent_after_dump = cluster.provider.calls().len() - calls;

    let restored = OwnPostgres::start().await;
    run(RESTORE, restored.url(), &file).await;
    cluster.use_database(restored.url());
    let ended = cluster.tool(&["check"]).await;
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
    replica = cluster.replica().await;
    for id in &before.sent {
        assert_eq!(cluster.status(&replica.url, id).await["status"], "SENT");
    }
    let dead = cluster.status(&replica.url, &before.dead).await;
    assert_eq!(dead["status"], "FAILED", "{dead}");
    let scheduled = cluster.status(&replica.url, &before.scheduled).await;
    assert_eq!(scheduled["status"], "SCHEDULED", "{scheduled}");
    for id in &before.waiting {
        cluster.settled(&replica, id, "SENT").await;
    }
    let lost = cluster.status(&replica.url, &after_dump).await;
    assert_eq!(lost["code"], "not_found", "{lost}");
    let letters = cluster.read(&replica, "dead").await.to_string();
    assert!(letters.contains(&before.dead), "{letters}");
    let again = cluster
        .try_post(&replica.url, "sent0", "Ada", "NORMAL")
        .await;
    assert_eq!(again.as_ref(), before.sent.first(), "idempotency keys");
    let calls = cluster.provider.calls();
    let repeated = before
        .waiting
        .iter()
        .filter(|id| calls.iter().filter(|call| call.id == **id).count() > 1)
        .count();
    note(&format!(
        "notify: restore of a dump: {sent_after_dump} calls after the dump, {repeated} of {} waiting notifications sent twice",
        before.waiting.len()
    ));
    assert_eq!(
        repeated,
        before.waiting.len(),
        "what was sent after the dump is sent again"
    );
    for id in before.sent.iter().chain([&before.dead]) {
        let sends = calls.iter().filter(|call| call.id == *id).count();
        assert_eq!(
            sends, 1,
            "what was finished before the dump is not repeated"
        );
    }
    replica.stop().await;
    restored.stop().await;
}
