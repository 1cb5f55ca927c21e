//! A PostgreSQL of a test's own, to be killed.

use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

/// A server in a folder of its own, started as `tests/run` starts its.
pub(crate) struct OwnPostgres {
    folder: TempDir,
    pid: u32,
    url: String,
}

/// Starts it on a port of its own, or again on the same; says its process id and its address.
const START: &str = r#"
set -euo pipefail
. tests/services.sh
folder=$1
if [ -z "${2:-}" ]; then
    start_postgres "$folder"
else
    bin=$(postgres_bin)
    (cd "$folder" && as_postgres "$bin/postgres" -D "$folder/data" -p "$2" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200 \
        -c fsync=on -c synchronous_commit=on) >>"$folder/postgres.log" 2>&1 </dev/null &
    POSTGRES_PID=$!
    await_ready "$POSTGRES_PID" "$bin/pg_isready" -q -h 127.0.0.1 -p "$2" -U postern || exit 75
    POSTERN_TEST_POSTGRES="postgres://postern@127.0.0.1:$2/postgres"
fi
printf '%s %s\n' "$POSTGRES_PID" "$POSTERN_TEST_POSTGRES"
"#;

/// Ends the server and everyone who works for it, at once.
const KILL: &str = r#"workers=$(ps -o pid= --ppid "$1"); kill -KILL "$1" $workers 2>/dev/null || true"#;

// === impl OwnPostgres ===

impl OwnPostgres {
    /// Starts an empty one.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The server runs as another user where the tests run as root.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("the folder is ours");
        let (pid, url) = run(folder.path(), None).await.expect("PostgreSQL starts");
        Self { folder, pid, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// As a crash of the machine would end it, except for what the kernel has in hand.
    pub(crate) async fn kill(&self) {
        let _ = Command::new("bash").args(["-c", KILL, "kill", &self.pid.to_string()]).status().await;
    }

    /// Starts it again over the same files; the dead one's workers may take a moment to be gone.
    pub(crate) async fn again(&mut self) {
        let port = url::Url::parse(&self.url).ok().and_then(|url| url.port()).expect("a port").to_string();
        for _ in 0..20 {
            if let Some((pid, _)) = run(self.folder.path(), Some(&port)).await {
                self.pid = pid;
                return;
            }
        }
        let log = std::fs::read_to_string(self.folder.path().join("postgres.log")).unwrap_or_default();
        panic!("PostgreSQL does not come back: {log}");
    }

    /// Ends it well.
    pub(crate) async fn stop(self) {
        let status = Command::new("kill").args(["-INT", &self.pid.to_string()]).status().await;
        assert!(status.expect("kill can be run").success());
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        let _ = std::process::Command::new("bash").args(["-c", KILL, "kill", &self.pid.to_string()]).status();
    }
}

async fn run(folder: &Path, port: Option<&str>) -> Option<(u32, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = folder.to_str().expect("a path in UTF-8");
    let mut command = Command::new("bash");
    command.args(["-c", START, "start", folder]).args(port).current_dir(root);
    let output = command.stdin(std::process::Stdio::null()).output().await.expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (pid, url) = text.trim().split_once(' ')?;
    Some((pid.parse().ok()?, url.to_owned()))
}
