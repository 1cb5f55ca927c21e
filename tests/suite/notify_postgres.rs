//! A temporary PostgreSQL server that can be killed, with a standby or a PgBouncer.

use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

/// A server with a temporary folder, started as `tests/run` starts its own.
pub(crate) struct OwnPostgres {
    folder: TempDir,
    pid: u32,
    url: String,
}

/// Starts the server on a free port, or again on the same one, and prints its process id and
/// address.
const START: &str = r#"
set -euo pipefail
. tests/services.sh
folder=$1
if [ -z "${2:-}" ]; then
    start_postgres "$folder"
else
    bin=$(postgres_bin)
    (cd "$folder" && as_postgres "$bin/postgres" -D "$folder/data" -p "$2" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories='' \
        -c max_connections="${POSTERN_TEST_MAX_CONNECTIONS:-200}" \
        -c fsync=on -c synchronous_commit=on) >>"$folder/postgres.log" 2>&1 </dev/null &
    POSTGRES_PID=$!
    await_ready "$POSTGRES_PID" "$bin/pg_isready" -q -h 127.0.0.1 -p "$2" -U postern || exit 75
    POSTERN_TEST_POSTGRES="postgres://postern@127.0.0.1:$2/postgres"
fi
printf '%s %s\n' "$POSTGRES_PID" "$POSTERN_TEST_POSTGRES"
"#;

const START_STANDBY: &str = r#"
set -euo pipefail
. tests/services.sh
start_standby "$1" "$2"
printf '%s %s\n' "$POSTGRES_PID" "$POSTERN_TEST_POSTGRES"
"#;

const START_PGBOUNCER: &str = r#"
set -euo pipefail
. tests/services.sh
start_pgbouncer "$1" "$2" "$3"
printf '%s %s\n' "$PGBOUNCER_PID" "$PGBOUNCER_PORT"
"#;

/// Kills the server and its backends at once.
const KILL: &str =
    r#"workers=$(ps -o pid= --ppid "$1"); kill -KILL "$1" $workers 2>/dev/null || true"#;

// === impl OwnPostgres ===

impl OwnPostgres {
    /// Starts an empty server.
    pub(crate) async fn start() -> Self {
        let folder = open_folder();
        let (pid, url) = run(folder.path(), None).await.expect("PostgreSQL starts");
        Self { folder, pid, url }
    }

    /// Starts a standby of this server.
    pub(crate) async fn standby(&self) -> Self {
        let folder = open_folder();
        let port = port(&self.url).to_string();
        let (pid, url) = bash(START_STANDBY, folder.path(), &[&port])
            .await
            .expect("the standby starts");
        let pid = pid.parse().expect("a process id");
        Self { folder, pid, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Kills the server as a machine crash would, except for the kernel's buffers.
    pub(crate) async fn kill(&self) {
        let _ = Command::new("bash")
            .args(["-c", KILL, "kill", &self.pid.to_string()])
            .status()
            .await;
    }

    /// Restarts the server with its data, waiting for the old backends to exit.
    pub(crate) async fn restart(&mut self) {
        let port = port(&self.url).to_string();
        for _ in 0..20 {
            if let Some((pid, _)) = run(self.folder.path(), Some(&port)).await {
                self.pid = pid;
                return;
            }
        }
        let log =
            std::fs::read_to_string(self.folder.path().join("postgres.log")).unwrap_or_default();
        panic!("PostgreSQL does not come back: {log}");
    }

    /// Stops the server cleanly.
    pub(crate) async fn stop(self) {
        let status = Command::new("kill")
            .args(["-INT", &self.pid.to_string()])
            .status()
            .await;
        assert!(status.expect("kill can be run").success());
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        let _ = std::process::Command::new("bash")
            .args(["-c", KILL, "kill", &self.pid.to_string()])
            .status();
    }
}

/// A PgBouncer in front of a server.
pub(crate) struct PgBouncer {
    pid: String,
    port: u16,
    _folder: TempDir,
}

// === impl PgBouncer ===

impl PgBouncer {
    /// Starts a PgBouncer for the server of a URL.
    pub(crate) async fn start(url: &str, mode: &str) -> Self {
        let folder = open_folder();
        let server = port(url).to_string();
        let started = bash(START_PGBOUNCER, folder.path(), &[&server, mode]).await;
        let (pid, port) = started.expect("PgBouncer starts");
        Self {
            pid,
            port: port.parse().expect("a port"),
            _folder: folder,
        }
    }

    /// Returns a database URL through the PgBouncer.
    pub(crate) fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_port(Some(self.port)).expect("it has a host");
        url.to_string()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill")
            .args(["-KILL", &self.pid])
            .status();
    }
}

pub(crate) fn port(url: &str) -> u16 {
    url::Url::parse(url)
        .ok()
        .and_then(|url| url.port())
        .expect("a port")
}

/// A folder for servers that run as another user if the tests run as root.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("the folder's permissions can be set");
    folder
}

async fn run(folder: &Path, port: Option<&str>) -> Option<(u32, String)> {
    let arguments: Vec<&str> = port.into_iter().collect();
    let (pid, url) = bash(START, folder, &arguments).await?;
    Some((pid.parse().ok()?, url))
}

/// Runs a script that prints two words at its end.
async fn bash(script: &str, folder: &Path, arguments: &[&str]) -> Option<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = folder.to_str().expect("a path in UTF-8");
    let mut command = Command::new("bash");
    command
        .args(["-c", script, "start", folder])
        .args(arguments)
        .current_dir(root);
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (one, other) = text.trim().split_once(' ')?;
    Some((one.to_owned(), other.to_owned()))
}
