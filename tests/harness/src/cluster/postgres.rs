//! PostgreSQL with a synchronous standby: an acknowledged commit is on both servers.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::process::Command;

use crate::ports;
use crate::stores::{bash, kill};
use crate::wait::until;

/// Size of the file system of a server.
const DISK: &str = "768m";

/// Starts a server: FOLDER PORT and optionally PRIMARY. With the port of a primary, an empty folder becomes a standby of
/// it. Prints its process id and port.
const START: &str = r#"
set -euo pipefail
. tests/services.sh
folder=$1 port=$2 primary=${3:-}
bin=$(postgres_bin)
mkdir -p "$folder"
if [ "$(id -u)" -eq 0 ]; then chown "$(postgres_user)" "$folder"; fi
if [ ! -d "$folder/data" ]; then
    if [ -n "$primary" ]; then
        (cd "$folder" && as_postgres timeout 60 "$bin/pg_basebackup" -h 127.0.0.1 -p "$primary" -U postern \
            -D "$folder/data" --write-recovery-conf --wal-method=stream --checkpoint=fast --no-sync) >>"$folder.log" 2>&1
    else
        (cd "$folder" && as_postgres "$bin/initdb" --pgdata="$folder/data" --username=postern --auth=trust \
            --encoding=UTF8 --locale=C --no-sync) >>"$folder.log" 2>&1
    fi
fi
(cd "$folder" && as_postgres "$bin/postgres" -D "$folder/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories='' -c max_connections=300 -c shared_buffers=64MB -c max_wal_size=128MB -c fsync=on \
    -c synchronous_commit=on -c synchronous_standby_names='*' -c hot_standby=on -c restart_after_crash=on) \
    >>"$folder.log" 2>&1 </dev/null &
pid=$!
await_ready "$pid" "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U postern || exit 75
printf '%s %s\n' "$pid" "$port"
"#;

/// A primary and its standby. Their roles change.
#[derive(Debug)]
pub(super) struct Postgres {
    servers: [Server; 2],
    primary: usize,
}

#[derive(Debug)]
struct Server {
    /// The mount point of its file system, if it has one.
    disk: Option<PathBuf>,
    folder: PathBuf,
    port: u16,
    pid: String,
}

impl Postgres {
    /// Starts both servers below a folder, with databases of these names. With `own_disks`, each server
    /// has a file system in memory, which can be filled.
    pub(super) async fn start(folder: &Path, databases: &[&str], own_disks: bool) -> Self {
        let mut servers = Vec::new();
        for number in 0..2 {
            let mount = folder.join(format!("postgres-{number}"));
            // Of an earlier run: its data would be used again.
            let _ = std::fs::remove_dir_all(&mount);
            std::fs::create_dir_all(&mount).expect("the folder can be written");
            if own_disks {
                let (size, mount) = (format!("size={DISK}"), text(&mount));
                run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &mount]).await;
            }
            servers.push(Server {
                folder: mount.join("server"),
                disk: own_disks.then_some(mount),
                port: ports::free(1),
                pid: String::new(),
            });
        }
        let [first, second]: [Server; 2] = servers.try_into().expect("two servers");
        let mut both = Self {
            servers: [first, second],
            primary: 0,
        };
        both.servers[0].launch(None).await;
        let primary = both.servers[0].port;
        both.servers[1].launch(Some(primary)).await;
        let mut operator = both.operator().await.expect("the primary answers");
        for name in databases {
            let create = format!("CREATE DATABASE {name} TEMPLATE template0");
            let created = operator.execute(AssertSqlSafe(create)).await;
            created.expect("created");
        }
        both
    }

    /// Returns the URL of a database, with both servers.
    pub(super) fn url(&self, database: &str) -> String {
        let [first, second] = &self.servers;
        format!(
            "postgres://postern@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
            first.port, second.port
        )
    }

    /// Returns the port of the primary.
    pub(super) fn primary_port(&self) -> u16 {
        self.servers[self.primary].port
    }

    /// Kills the primary, promotes the standby, and makes the old primary its standby.
    pub(super) async fn fail_over(&mut self) {
        self.servers[self.primary].kill().await;
        self.primary = 1 - self.primary;
        let mut operator = self.operator().await.expect("the standby answers");
        let promoted = operator.execute("SELECT pg_promote(true, 60)").await;
        promoted.expect("promoted");
        let primary = self.primary_port();
        let old = &mut self.servers[1 - self.primary];
        std::fs::remove_dir_all(&old.folder).expect("the old data can be removed");
        old.launch(Some(primary)).await;
    }

    /// Fills the disk of the primary.
    pub(super) async fn fill(&self) {
        if let Some(disk) = &self.servers[self.primary].disk {
            let script = r#"dd if=/dev/zero of="$1/balloon" bs=64k 2>/dev/null || true"#;
            run("bash", &["-c", script, "fill", &text(disk)]).await;
        }
    }

    /// Frees the disk of the primary, and starts the server again if it has ended.
    pub(super) async fn free(&mut self) {
        let server = &mut self.servers[self.primary];
        if let Some(disk) = &server.disk {
            std::fs::remove_file(disk.join("balloon")).expect("the balloon can be removed");
        }
        let alive = Command::new("kill")
            .args(["-0", &server.pid])
            .output()
            .await;
        if !alive.expect("kill runs").status.success() {
            server.launch(None).await;
        }
        until("PostgreSQL recovers", async || {
            self.operator().await.is_some()
        })
        .await;
    }

    /// Stops both servers and releases their file systems.
    pub(super) async fn stop(&mut self) {
        for server in &mut self.servers {
            server.kill().await;
            if let Some(disk) = &server.disk {
                run("umount", &["--lazy", &text(disk)]).await;
            }
        }
    }

    async fn operator(&self) -> Option<PgConnection> {
        let port = self.primary_port();
        let url = format!("postgres://postern@127.0.0.1:{port}/postgres");
        PgConnection::connect(&url).await.ok()
    }
}

impl Server {
    /// Starts the server; an empty one as a standby of `primary`.
    async fn launch(&mut self, primary: Option<u16>) {
        let port = self.port.to_string();
        let primary = primary.map(|port| port.to_string()).unwrap_or_default();
        let started = bash(START, &self.folder, &[&port, &primary]).await;
        let (pid, _) = started.expect("PostgreSQL starts");
        self.pid = pid;
    }

    async fn kill(&mut self) {
        let _ = Command::from(kill(&self.pid)).status().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(&self.pid).status();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

async fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().await;
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
