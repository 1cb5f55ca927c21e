//! Values bound to an epoch are taken at most once, over a failover that loses takes and the
//! failback that follows.

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::*;
use super::MINUTE;
use super::servers::{Server, open, recovers};

const LONG: Duration = Duration::from_secs(120);
const TOKENS: usize = 60;

/// A cluster of two servers, a master and its replica.
struct Stage {
    nodes: [Server; 2],
}

/// Number of takes of each token: bound to the epoch, and bound to `run_id` only.
struct Wins {
    by_epoch: [usize; TOKENS],
    by_run_id: [usize; TOKENS],
}

impl Stage {
    async fn cluster() -> Self {
        let options = [
            "--cluster-enabled",
            "yes",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let nodes = [Server::start(&options).await, Server::start(&options).await];
        let _: String = nodes[0]
            .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
            .await
            .expect("slots");
        let port = nodes[0].port.to_string();
        let _: String = nodes[1]
            .command(&["CLUSTER", "MEET", "127.0.0.1", &port])
            .await
            .expect("met");
        let id: String = nodes[0].command(&["CLUSTER", "MYID"]).await.expect("named");
        until("a cluster", async || {
            nodes[1]
                .command::<String>(&["CLUSTER", "REPLICATE", &id])
                .await
                .is_ok()
        })
        .await;
        Self { nodes }
    }

    async fn cache(&self) -> Cache {
        let [first, second] = [self.nodes[0].port, self.nodes[1].port];
        let url = format!("redis-cluster://127.0.0.1:{first},127.0.0.1:{second}");
        open(&url).await
    }

    async fn replicates(&self, node: usize) -> bool {
        let told: Result<String, _> = self.nodes[node].command(&["INFO", "replication"]).await;
        told.is_ok_and(|told| told.contains("role:slave") && told.contains("master_link_status:up"))
    }

    async fn is_master(&self, node: usize) -> bool {
        let told: Result<String, _> = self.nodes[node].command(&["INFO", "replication"]).await;
        told.is_ok_and(|told| told.contains("role:master"))
    }

    /// Promotes a replica, and assigns all slots to it if the takeover did not: in some runs it made
    /// the replica a master without slots, and the old master was never demoted.
    async fn promote(&self, node: usize) {
        self.take_over(node).await;
        until("slots", async || {
            let nodes: Result<String, _> = self.nodes[node].command(&["CLUSTER", "NODES"]).await;
            let serves_all = nodes.is_ok_and(|nodes| {
                let mut lines = nodes.lines();
                lines.any(|line| line.contains("myself") && line.ends_with("0-16383"))
            });
            if !serves_all {
                for command in ["DELSLOTSRANGE", "ADDSLOTSRANGE"] {
                    let command = ["CLUSTER", command, "0", "16383"];
                    let _: Result<String, _> = self.nodes[node].command(&command).await;
                }
            }
            serves_all
        })
        .await;
    }

    async fn take_over(&self, node: usize) {
        until("a promotion", async || {
            let command = ["CLUSTER", "FAILOVER", "TAKEOVER"];
            let _: Result<String, _> = self.nodes[node].command(&command).await;
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_millis(500) {
                if self.is_master(node).await {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            false
        })
        .await;
    }
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < LONG, "no {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn key(token: usize) -> String {
    format!("token-{token}")
}

/// Takes each of the tokens concurrently, retrying until there is an answer.
async fn race(cache: &Cache, tokens: std::ops::Range<usize>, wins: &Mutex<Wins>) {
    let callers = (0..4).map(|_| async {
        for token in tokens.clone() {
            let start = Instant::now();
            let (bound_to, epoch) = loop {
                match cache.take_with_epoch(&key(token)).await {
                    Ok((Some(bound_to), epoch)) => break (bound_to, epoch),
                    Ok((None, _)) => break (Vec::new(), String::new()),
                    Err(CacheError::Unavailable) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                assert!(start.elapsed() < LONG, "no answer");
            };
            if bound_to.is_empty() {
                continue;
            }
            let bound_to = String::from_utf8(bound_to).expect("an epoch");
            let run_id = |epoch: &str| epoch.split(':').next().map(str::to_owned);
            let mut wins = wins.lock();
            wins.by_epoch[token] += usize::from(bound_to == epoch);
            wins.by_run_id[token] += usize::from(run_id(&bound_to) == run_id(&epoch));
        }
    });
    futures_util::future::join_all(callers).await;
}

/// Takes tokens from a master whose replication is broken, which is then suspended, demoted,
/// receives the replica's data, and is promoted again.
async fn fail_over_and_back(stage: &Stage) {
    let cache = stage.cache().await;
    recovers(&cache).await;
    let [first, second] = &stage.nodes;
    until("replica", async || stage.replicates(1).await).await;
    for token in 0..TOKENS {
        until("room", async || {
            let Ok(epoch) = cache.epoch(&key(token)).await else {
                return false;
            };
            cache
                .set(&key(token), epoch.as_bytes(), 10 * MINUTE)
                .await
                .is_ok()
        })
        .await;
    }
    let in_step: i64 = first
        .command(&["WAIT", "1", "60000"])
        .await
        .expect("answers");
    assert_eq!(in_step, 1);
    second.signal("-STOP");
    let _: i64 = first
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .await
        .expect("cut off");
    let wins = Mutex::new(Wins {
        by_epoch: [0; TOKENS],
        by_run_id: [0; TOKENS],
    });
    race(&cache, 0..40, &wins).await;
    first.signal("-STOP");
    second.signal("-CONT");
    // Some tokens are taken while the replica is promoted; some that it restored are left for the
    // failback.
    tokio::join!(race(&cache, 0..20, &wins), stage.promote(1));
    first.signal("-CONT");
    until("demotion", async || stage.replicates(0).await).await;
    tokio::join!(stage.promote(0), race(&cache, 0..10, &wins));
    until("demotion", async || stage.replicates(1).await).await;
    race(&cache, 0..TOKENS, &wins).await;
    let wins = wins.into_inner();
    assert!(
        wins.by_epoch.iter().all(|wins| *wins <= 1),
        "{:?}",
        wins.by_epoch
    );
    assert!(
        wins.by_epoch[..40].iter().all(|wins| *wins == 1),
        "taken on the first: {:?}",
        wins.by_epoch
    );
    assert!(
        wins.by_run_id.iter().any(|wins| *wins > 1),
        "run_id is the same again: {:?}",
        wins.by_run_id
    );
}

#[tokio::test]
async fn cluster_failover_and_failback_give_no_token_twice() {
    fail_over_and_back(&Stage::cluster().await).await;
}

#[tokio::test]
async fn conditional_write_on_demoted_master_is_an_error() {
    let server = Server::start(&[]).await;
    let url = format!("redis://127.0.0.1:{}", server.port);
    // One cache per call, so that no circuit breaker decides the result.
    let caches = [open(&url).await, open(&url).await];
    for cache in &caches {
        recovers(cache).await;
    }
    let epoch = caches[0].epoch("a").await.expect("an epoch");
    let _: String = server
        .command(&["REPLICAOF", "127.0.0.1", "1"])
        .await
        .expect("demoted");
    assert_eq!(
        caches[0].set_if_absent_in(&epoch, "b", b"1", MINUTE).await,
        Err(CacheError::Unavailable)
    );
    assert_eq!(
        caches[1].take_with_epoch("a").await,
        Err(CacheError::Unavailable)
    );
}
