//! A Redis master and its replica behind a sentinel, with the faults of a fail-over.

use std::process::Stdio;
use std::time::{Duration, Instant};

use postern_common::cache::testing::RedisServer;
use postern_tests::ports;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const OPTIONS: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];
const TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Two servers of a test's own; the sentinel promotes them on command.
pub(crate) struct RedisPair {
    pub(crate) nodes: [RedisServer; 2],
    sentinel_port: u16,
    _sentinel: Child,
    _folder: TempDir,
}

// === impl RedisPair ===

impl RedisPair {
    /// Starts all three, and returns when the second server replicates the first.
    pub(crate) async fn start() -> Self {
        let nodes = [
            RedisServer::start(OPTIONS).await,
            RedisServer::start(OPTIONS).await,
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
            .expect("redis-server is there: tests/run installs it");
        let pair = Self {
            nodes,
            sentinel_port,
            _sentinel: sentinel,
            _folder: folder,
        };
        until("sentinel", async || {
            ask(pair.sentinel_port, "PING").await.is_some()
        })
        .await;
        pair.until_replicated(1).await;
        pair
    }

    /// The cache's URL for a service.
    pub(crate) fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/mymaster", self.sentinel_port)
    }

    /// Returns when the replica has what the master has.
    pub(crate) async fn in_step(&self, master: usize) {
        until("replica in step", async || {
            let reply = ask(port(&self.nodes[master]), "WAIT 1 1000").await;
            reply.as_deref() == Some(":1")
        })
        .await;
    }

    /// Cuts off the replicas of a master; a stopped one does not come back.
    pub(crate) async fn cut_replicas(&self, master: usize) {
        let reply = ask(port(&self.nodes[master]), "CLIENT KILL TYPE replica").await;
        assert!(reply.is_some(), "the master answers");
    }

    /// Has the sentinel promote a node, and returns when it is the master.
    pub(crate) async fn promote(&self, node: usize) {
        until("promotion", async || {
            let _ = ask(self.sentinel_port, "SENTINEL FAILOVER mymaster").await;
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_millis(500) {
                if self.replication(node).await.contains("role:master") {
                    return true;
                }
                tokio::task::yield_now().await;
            }
            false
        })
        .await;
    }

    /// Returns when the node is a replica that is connected to its master.
    pub(crate) async fn until_replicated(&self, node: usize) {
        until("replica", async || {
            let state = self.replication(node).await;
            state.contains("role:slave") && state.contains("master_link_status:up")
        })
        .await;
    }

    async fn replication(&self, node: usize) -> String {
        ask(port(&self.nodes[node]), "INFO replication")
            .await
            .unwrap_or_default()
    }
}

fn port(server: &RedisServer) -> u16 {
    let url = url::Url::parse(&server.url()).expect("a URL");
    url.port().expect("a port")
}

pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < TIMEOUT, "no {what}");
        tokio::task::yield_now().await;
    }
}

/// Sends an inline command and returns the reply: its line, or the text of a bulk string.
async fn ask(port: u16, command: &str) -> Option<String> {
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
