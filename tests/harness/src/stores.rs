//! Databases and caches of tests: separate ones at the servers of `tests/run`, and servers that can be
//! killed, with a standby, a PgBouncer or a replica.

pub mod redis_pair;

use std::path::Path;

use postern_store::cache::testing::{TestCache, redis};
use postern_store::database::testing::{TestDatabase, postgres};

use tempfile::TempDir;
use tokio::process::Command;

/// Empty stores of an installation at the servers of `tests/run`.
#[derive(Debug)]
pub struct Stores {
    /// The database of the authentication service.
    pub auth: TestDatabase,
    /// The database of the notification service.
    pub notify: TestDatabase,
    /// The cache of both.
    pub cache: TestCache,
}

impl Stores {
    /// Creates them.
    pub async fn create() -> Self {
        Self {
            auth: postgres().await,
            notify: postgres().await,
            cache: redis().await,
        }
    }

    /// Returns their URLs: the databases, then the cache.
    pub fn urls(&self) -> [String; 3] {
        [&self.auth.url, &self.notify.url, &self.cache.url].map(Clone::clone)
    }
}

/// A PostgreSQL server with a temporary folder, started as `tests/run` starts its own.
#[derive(Debug)]
pub struct OwnPostgres {
    folder: TempDir,
    pid: String,
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

/// Returns the command that kills a server and its backends at once.
pub(crate) fn kill(pid: &str) -> std::process::Command {
    let script =
        r#"workers=$(ps -o pid= --ppid "$1"); kill -KILL "$1" $workers 2>/dev/null || true"#;
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, "kill", pid]);
    command
}

impl OwnPostgres {
    /// Starts an empty server.
    pub async fn start() -> Self {
        let folder = open_folder();
        let started = bash(START, folder.path(), &[]).await;
        let (pid, url) = started.expect("PostgreSQL starts");
        Self { folder, pid, url }
    }

    /// Starts a standby of this server.
    pub async fn standby(&self) -> Self {
        let folder = open_folder();
        let port = port(&self.url).to_string();
        let started = bash(START_STANDBY, folder.path(), &[&port]).await;
        let (pid, url) = started.expect("the standby starts");
        Self { folder, pid, url }
    }

    /// Returns the URL of its database `postgres`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Kills the server as a machine crash would, except for the kernel's buffers.
    pub async fn kill(&self) {
        let _ = Command::from(kill(&self.pid)).status().await;
    }

    /// Restarts the server with its data, waiting for the old backends to exit.
    pub async fn restart(&mut self) {
        let port = port(&self.url).to_string();
        for _ in 0..20 {
            if let Some((pid, _)) = bash(START, self.folder.path(), &[&port]).await {
                self.pid = pid;
                return;
            }
        }
        let log = std::fs::read_to_string(self.folder.path().join("postgres.log"));
        panic!("PostgreSQL does not come back: {}", log.unwrap_or_default());
    }

    /// Stops the server cleanly.
    pub async fn stop(self) {
        let status = Command::new("kill").args(["-INT", &self.pid]).status();
        let status = status.await;
        assert!(status.expect("kill can be run").success());
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        let _ = kill(&self.pid).status();
    }
}

/// A PgBouncer in front of a server.
#[derive(Debug)]
pub struct PgBouncer {
    pid: String,
    port: u16,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer for the server of a URL.
    pub async fn start(url: &str, mode: &str) -> Self {
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
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_port(Some(self.port)).expect("it has a host");
        url.to_string()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let mut kill = std::process::Command::new("kill");
        let _ = kill.args(["-KILL", &self.pid]).status();
    }
}

/// Returns the port of a URL.
pub fn port(url: &str) -> u16 {
    let url = url::Url::parse(url).expect("a URL");
    url.port().expect("a port")
}

/// A folder for servers that run as another user if the tests run as root.
pub fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("the folder's permissions can be set");
    folder
}

/// Runs a script that prints two words at its end.
pub(crate) async fn bash(
    script: &str,
    folder: &Path,
    arguments: &[&str],
) -> Option<(String, String)> {
    let folder = folder.to_str().expect("a path in UTF-8");
    let mut command = Command::new("bash");
    command
        .args(["-c", script, "start", folder])
        .args(arguments);
    command.current_dir(crate::paths::repository());
    command.stdin(std::process::Stdio::null());
    let output = command.output().await.expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (one, other) = text.trim().split_once(' ')?;
    Some((one.to_owned(), other.to_owned()))
}
