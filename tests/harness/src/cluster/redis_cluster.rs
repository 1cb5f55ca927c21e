//! A Redis Cluster of three masters with one replica each.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::ports;
use crate::wait::until;

/// Servers: masters and replicas.
const SERVERS: usize = 6;

/// Maximum wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Time without an answer after which a master is replaced.
const NODE_TIMEOUT_MS: &str = "1500";

/// The servers.
#[derive(Debug)]
pub(super) struct RedisCluster {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    port: u16,
    /// Port for the messages between the servers.
    bus_port: u16,
    folder: PathBuf,
    child: Child,
}

impl RedisCluster {
    /// Starts the servers below a folder and connects them.
    pub(super) async fn start(folder: &Path) -> Self {
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let folder = folder.join(format!("redis-{number}"));
            // Of an earlier run: its servers would be in another cluster.
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).expect("the folder can be written");
            let (port, bus_port) = (ports::free(1), ports::free(1));
            let child = spawn(&folder, port, bus_port);
            servers.push(Server {
                port,
                bus_port,
                folder,
                child,
            });
        }
        let cluster = Self { servers };
        for server in &cluster.servers {
            let ready = async || command(server.port, &["PING"]).await.contains("PONG");
            until("Redis does not answer", ready).await;
        }
        let mut create = Command::new("redis-cli");
        create
            .args(["--cluster", "create"])
            .args(cluster.addresses());
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let created = create.output().await.expect("redis-cli runs");
        let printed = String::from_utf8_lossy(&created.stdout);
        assert!(created.status.success(), "{printed}");
        cluster.until_complete().await;
        cluster
    }

    /// Returns the cache URL.
    pub(super) fn url(&self) -> String {
        format!("redis-cluster://{}", self.addresses().join(","))
    }

    fn addresses(&self) -> Vec<String> {
        let ports = self.servers.iter().map(|server| server.port);
        ports.map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Returns the ports of the masters, in a fixed order.
    pub(super) async fn masters(&self) -> Vec<u16> {
        let mut masters = Vec::new();
        for server in &self.servers {
            if command(server.port, &["ROLE"]).await.starts_with("master") {
                masters.push(server.port);
            }
        }
        masters
    }

    /// Kills a master, waits until its replica has taken over, and starts it again.
    pub(super) async fn fail_over(&mut self, random: usize) {
        let masters = self.masters().await;
        let port = masters[random % masters.len()];
        let mut servers = self.servers.iter();
        let at = servers.position(|server| server.port == port);
        let at = at.expect("a server");
        let killed = self.servers[at].child.kill().await;
        killed.expect("Redis can be killed");
        let taken_over = async || self.masters().await.len() == SERVERS / 2;
        until("no replica takes over", taken_over).await;
        let server = &mut self.servers[at];
        server.child = spawn(&server.folder, server.port, server.bus_port);
        self.until_complete().await;
    }

    /// Makes a replica take over from its master.
    pub(super) async fn switch_over(&self, random: usize) {
        let masters = self.masters().await;
        let ports = self.servers.iter().map(|server| server.port);
        let replicas: Vec<u16> = ports.filter(|port| !masters.contains(port)).collect();
        let Some(port) = replicas.get(random % replicas.len().max(1)) else {
            return;
        };
        let _ = command(*port, &["CLUSTER", "FAILOVER"]).await;
        let switched = async || command(*port, &["ROLE"]).await.starts_with("master");
        until("the replica does not take over", switched).await;
        self.until_complete().await;
    }

    /// Waits until all slots are served and every master has a replica.
    pub(super) async fn until_complete(&self) {
        for server in &self.servers {
            let complete = async || {
                let info = command(server.port, &["CLUSTER", "INFO"]).await;
                let nodes = command(server.port, &["CLUSTER", "NODES"]).await;
                let is_replica = |line: &&str| {
                    let is_connected = line.contains("slave") && line.contains(" connected");
                    is_connected && !line.contains("fail")
                };
                let replicas = nodes.lines().filter(is_replica).count();
                info.contains("cluster_state:ok") && replicas == SERVERS / 2
            };
            until("the cluster is not complete", complete).await;
        }
    }
}

/// Runs a command and returns what it prints; nothing if the server does not answer.
async fn command(port: u16, words: &[&str]) -> String {
    let port = port.to_string();
    let output = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port])
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(ANSWER_LIMIT, output).await {
        Ok(output) => String::from_utf8_lossy(&output.expect("redis-cli runs").stdout).into_owned(),
        Err(_) => String::new(),
    }
}

fn spawn(folder: &Path, port: u16, bus_port: u16) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("redis.log"));
    let (port, bus_port) = (port.to_string(), bus_port.to_string());
    Command::new("redis-server")
        .args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--cluster-enabled",
            "yes",
        ])
        .args([
            "--cluster-port",
            &bus_port,
            "--cluster-node-timeout",
            NODE_TIMEOUT_MS,
        ])
        .args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--min-replicas-to-write",
            "0",
        ])
        .args(["--repl-diskless-sync-delay", "0"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.expect("the folder can be written"))
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server is installed: tests/run sees to it")
}
