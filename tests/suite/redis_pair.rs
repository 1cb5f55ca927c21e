//! A Redis master and its replica behind a sentinel, with the faults of a fail-over.

use std::process::Stdio;
use std::time::{Duration, Instant};

use postern_store::cache::testing::RedisServer;
use postern_tests::ports;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const SERVER_OPTIONS: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];
const TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Two servers used by one test; the sentinel promotes either on command.
pub(crate) struct RedisPair {
    pub(crate) nodes: [RedisServer; 2],
    sentinel_port: u16,
    _sentinel: Child,
    _folder: TempDir,
}

// === impl RedisPair ===

impl RedisPair {
    /// Starts both servers and the sentinel, and returns when the second server replicates the
    /// first.
    pub(crate) async fn start() -> Self {
        let nodes = [
            RedisServer::start(SERVER_OPTIONS).await,
            RedisServer::start(SERVER_OPTIONS).await,
        ];
        let master = port(&nodes[0]);
        nodes[1]
            .command(&format!("REPLICAOF 127.0.0.1 {master}"))
            .await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sentinel_port = ports::free(1);
        let settings = format!(
            "port {sentinel_port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {master} 1\n\
             sentinel failover-timeout mymaster 5000\n"
        );
        std::fs::write(folder.path().join("sentinel.conf"), settings)
            .expect("the folder can be written");
        let sentinel = Command::new("redis-server")
            .args(["sentinel.conf", "--sentinel"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("redis-server is installed by tests/run");
        let pair = Self {
            nodes,
            sentinel_port,
            _sentinel: sentinel,
            _folder: folder,
        };
        wait_until("sentinel", async || {
            send_command(pair.sentinel_port, "PING").await.is_some()
        })
        .await;
        pair.until_replicated(1).await;
        pair
    }

    /// Returns the cache URL for the configuration of a service.
    pub(crate) fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/mymaster", self.sentinel_port)
    }

    /// Waits until the replica has acknowledged all writes of the master.
    pub(crate) async fn wait_for_replication(&self, master: usize) {
        wait_until("acknowledged replication", async || {
            let reply = send_command(port(&self.nodes[master]), "WAIT 1 1000").await;
            reply.as_deref() == Some(":1")
        })
        .await;
    }

    /// Closes the connections of a master to its replicas. A suspended replica does not reconnect.
    pub(crate) async fn disconnect_replicas(&self, master: usize) {
        let reply = send_command(port(&self.nodes[master]), "CLIENT KILL TYPE replica").await;
        assert!(reply.is_some(), "the master answers");
    }

    /// Lets the sentinel promote a node, and waits until it is the master.
    pub(crate) async fn promote(&self, node: usize) {
        wait_until("promotion", async || {
            let _ = send_command(self.sentinel_port, "SENTINEL FAILOVER mymaster").await;
            let sent_at = Instant::now();
            while sent_at.elapsed() < Duration::from_millis(500) {
                if self.replication(node).await.contains("role:master") {
                    return true;
                }
                tokio::task::yield_now().await;
            }
            false
        })
        .await;
    }

    /// Waits until the node is a replica connected to its master.
    pub(crate) async fn until_replicated(&self, node: usize) {
        wait_until("replica", async || {
            let state = self.replication(node).await;
            state.contains("role:slave") && state.contains("master_link_status:up")
        })
        .await;
    }

    async fn replication(&self, node: usize) -> String {
        send_command(port(&self.nodes[node]), "INFO replication")
            .await
            .unwrap_or_default()
    }
}

fn port(server: &RedisServer) -> u16 {
    let url = url::Url::parse(&server.url()).expect("a URL");
    url.port().expect("a port")
}

/// Polls a condition until it is true.
///
/// # Panics
/// If it is not within [`TIMEOUT`].
pub(crate) async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < TIMEOUT, "no {what}");
        tokio::task::yield_now().await;
    }
}

/// Sends an inline command and returns the reply: its line, or the text of a bulk string.
async fn send_command(port: u16, command: &str) -> Option<String> {
    let reply = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .await
            .ok()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else {
            return Some(line.to_owned());
        };
        let mut text = vec![0; length.parse().ok()?];
        reader.read_exact(&mut text).await.ok()?;
        String::from_utf8(text).ok()
    };
    tokio::time::timeout(REPLY_TIMEOUT, reply).await.ok()?
}
