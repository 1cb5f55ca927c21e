//! A Redis master and its replica behind a sentinel, with the faults of a fail-over.

use std::time::{Duration, Instant};

use postern_store::cache::testing::RedisServer;

use crate::wait::until;

const SERVER_OPTIONS: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Two servers used by one test; the sentinel promotes either on command.
#[derive(Debug)]
pub struct RedisPair {
    /// The servers.
    pub nodes: [RedisServer; 2],
    sentinel: RedisServer,
}

impl RedisPair {
    /// Starts both servers and the sentinel, and returns when the second server replicates the
    /// first.
    pub async fn start() -> Self {
        let nodes = [
            RedisServer::start(SERVER_OPTIONS).await,
            RedisServer::start(SERVER_OPTIONS).await,
        ];
        let master = nodes[0].port();
        nodes[1]
            .command(&format!("REPLICAOF 127.0.0.1 {master}"))
            .await;
        let sentinel = RedisServer::sentinel_of(&nodes[0]).await;
        let pair = Self { nodes, sentinel };
        pair.until_replicated(1).await;
        pair
    }

    /// Returns the cache URL for the configuration of a service.
    pub fn url(&self) -> String {
        format!(
            "redis-sentinel://127.0.0.1:{}/mymaster",
            self.sentinel.port()
        )
    }

    /// Waits until the replica has acknowledged all writes of the master.
    pub async fn wait_for_replication(&self, master: usize) {
        until("acknowledged replication", async || {
            within(self.nodes[master].query::<i64>("WAIT 1 1000")).await == Some(1)
        })
        .await;
    }

    /// Closes the connections of a master to its replicas. A suspended replica does not reconnect.
    pub async fn disconnect_replicas(&self, master: usize) {
        let closed = within(self.nodes[master].query::<i64>("CLIENT KILL TYPE replica")).await;
        assert!(closed.is_some(), "the master answers");
    }

    /// Lets the sentinel promote a node, and waits until it is the master.
    pub async fn promote(&self, node: usize) {
        until("promotion", async || {
            let failover = self.sentinel.query::<String>("SENTINEL FAILOVER mymaster");
            let _refused_at_first = within(failover).await;
            let sent_at = Instant::now();
            let mut is_master = false;
            while !is_master && sent_at.elapsed() < Duration::from_millis(500) {
                is_master = self.replication(node).await.contains("role:master");
                tokio::task::yield_now().await;
            }
            is_master
        })
        .await;
    }

    /// Waits until the node is a replica connected to its master.
    pub async fn until_replicated(&self, node: usize) {
        until("replica", async || {
            let state = self.replication(node).await;
            state.contains("role:slave") && state.contains("master_link_status:up")
        })
        .await;
    }

    async fn replication(&self, node: usize) -> String {
        let state = self.nodes[node].query("INFO replication");
        within(state).await.unwrap_or_default()
    }
}

/// Returns a reply, unless the server is suspended.
async fn within<T, E>(reply: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(REPLY_TIMEOUT, reply).await.ok()?.ok()
}
