//! Tests with real servers that are killed, suspended and failed over: one server, a cluster, a
//! sentinel.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::time::Instant;

use super::super::testing::free_port;
use super::super::*;
use super::MINUTE;

/// A `redis-server` process that is killed when dropped.
pub(super) struct Server {
    pub(super) port: u16,
    folder: PathBuf,
    arguments: Vec<String>,
    child: Child,
}

impl Server {
    pub(super) async fn start(arguments: &[&str]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("postern-redis-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).expect("a folder");
        let port = free_port();
        let mut all: Vec<String> = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        all.extend(
            [
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ]
            .map(str::to_owned),
        );
        let child = spawn(&folder, &all);
        let mut server = Self {
            port,
            folder,
            arguments: all,
            child,
        };
        server.wait().await;
        server
    }

    /// Starts a sentinel, whose settings are in a file that it rewrites.
    pub(super) async fn sentinel_of(master: &Self) -> Self {
        let folder =
            std::env::temp_dir().join(format!("postern-redis-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).expect("a folder");
        let (port, of) = (free_port(), master.port);
        let settings =
            format!("port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {of} 1\n");
        std::fs::write(folder.join("sentinel.conf"), settings).expect("written");
        let arguments = vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()];
        let child = spawn(&folder, &arguments);
        let mut server = Self {
            port,
            folder,
            arguments,
            child,
        };
        server.wait().await;
        server
    }

    pub(super) async fn command<T: ::redis::FromRedisValue>(
        &self,
        words: &[&str],
    ) -> ::redis::RedisResult<T> {
        let client =
            ::redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await?;
        ::redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut connection)
            .await
    }

    async fn wait(&mut self) {
        let start = Instant::now();
        while self.command::<String>(&["PING"]).await.is_err() {
            assert!(start.elapsed() < MINUTE, "redis-server does not answer");
            assert!(
                self.child.try_wait().expect("a child").is_none(),
                "redis-server exited"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    async fn restart(&mut self) {
        self.child = spawn(&self.folder, &self.arguments);
        self.wait().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed: ./tests/run sees to it")
}

/// Makes every kind of call, to verify that each is routed.
pub(super) async fn works(cache: &Cache) -> Result<(), CacheError> {
    for n in 0..20_u8 {
        let key = format!("key-{n}");
        // Before any other script: a restarted server has not loaded it.
        let epoch = cache.epoch(&key).await?;
        assert!(cache.set_if_absent_in(&epoch, &key, &[n], MINUTE).await?);
        assert_eq!(cache.take_with_epoch(&key).await?, (Some(vec![n]), epoch));
        assert_eq!(
            cache.increment(&format!("count-{key}"), MINUTE).await? % 1000,
            1
        );
        let lock = cache.lock(&key, MINUTE).await?.expect("free");
        assert!(cache.lock(&key, MINUTE).await?.is_none());
        lock.release().await;
        cache.set(&key, &[n], MINUTE).await?;
        assert!(cache.delete(&key).await?);
        assert!(cache.delete(&format!("count-{key}")).await?);
    }
    assert_eq!(cache.epoch("key-1").await?.len(), 81);
    cache.ping().await.map_err(|_| CacheError::Unavailable)
}

/// Waits until the cache is available again.
pub(super) async fn recovers(cache: &Cache) {
    let start = Instant::now();
    while cache.ping().await.is_err() {
        assert!(start.elapsed() < MINUTE, "the cache does not recover");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Opens a cache with a longer deadline than the default, for a busy machine.
pub(super) async fn open(url: &str) -> Cache {
    Cache::open(&format!("{url}?deadline=2000ms"))
        .await
        .expect("a URL")
}

/// Works under a lock until it is lost.
async fn endless_work(held: lock::LockGuard) -> Result<(), CacheError> {
    let work = held.run(std::future::pending());
    tokio::time::timeout(Duration::from_secs(20), work)
        .await
        .expect("work ends when the lock is lost")
}

#[tokio::test]
async fn held_lock_is_renewed_and_work_ends_when_it_is_lost() {
    let mut server = Server::start(&[]).await;
    let cache = open(&format!("redis://127.0.0.1:{}", server.port)).await;
    let held = cache
        .lock("long", MINUTE)
        .await
        .expect("answers")
        .expect("free");
    let longer_than_a_lease = async {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            assert!(
                cache.lock("long", MINUTE).await.expect("answers").is_none(),
                "it is renewed"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(held.run(longer_than_a_lease).await, Ok(()));
    let held = cache
        .lock("long", MINUTE)
        .await
        .expect("answers")
        .expect("given back");
    // As after a failover to a replica that does not have the lock.
    assert!(cache.delete("long").await.expect("answers"));
    assert_eq!(
        endless_work(held).await,
        Err(CacheError::Unavailable),
        "another's"
    );
    let held = cache
        .lock("long", MINUTE)
        .await
        .expect("answers")
        .expect("given back");
    server.kill();
    assert_eq!(
        endless_work(held).await,
        Err(CacheError::Unavailable),
        "unconfirmed"
    );
}

#[tokio::test]
async fn server_without_memory_still_serves_reads() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let cache = open(&format!("redis://127.0.0.1:{}", server.port)).await;
    cache
        .set("kept", b"1", MINUTE)
        .await
        .expect("there is memory");
    let _: String = server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .await
        .expect("set");
    for _ in 0..4 * breaker::FAILURE_THRESHOLD {
        assert_eq!(
            cache.set("more", b"1", MINUTE).await,
            Err(CacheError::Unavailable)
        );
        assert_eq!(
            cache.get("kept").await,
            Ok(Some(b"1".to_vec())),
            "rejected writes delete nothing"
        );
    }
    assert_eq!(cache.delete("kept").await, Ok(true));
}

#[tokio::test]
async fn cluster_serves_every_call() {
    let mut server = Server::start(&["--cluster-enabled", "yes"]).await;
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let words: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
        .into_iter()
        .chain(slots.iter().map(String::as_str))
        .collect();
    let _: String = server
        .command(&words)
        .await
        .expect("one node has all slots");
    let start = Instant::now();
    while server
        .command::<String>(&["SET", "probe", "1"])
        .await
        .is_err()
    {
        assert!(start.elapsed() < MINUTE, "the cluster does not come up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let cache = open(&format!(
        "redis-cluster://127.0.0.1:{},127.0.0.1:1",
        server.port
    ))
    .await;
    recovers(&cache).await;
    works(&cache).await.expect("a cluster");
    // The cluster connection reconnects silently, so the node's id is queried each time.
    let epoch = cache.epoch("a").await;
    server.kill();
    server.restart().await;
    recovers(&cache).await;
    let start = Instant::now();
    while cache
        .epoch("a")
        .await
        .ok()
        .is_none_or(|another| Ok(another) == epoch)
    {
        assert!(
            start.elapsed() < MINUTE,
            "the restarted node has another epoch"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn sentinel_reports_the_master_and_its_successor() {
    let first = Server::start(&[]).await;
    let of = first.port.to_string();
    let second = Server::start(&[
        "--replicaof",
        "127.0.0.1",
        &of,
        "--repl-diskless-sync-delay",
        "0",
    ])
    .await;
    let sentinel = Server::sentinel_of(&first).await;
    let cache = open(&format!(
        "redis-sentinel://127.0.0.1:1,127.0.0.1:{}/mymaster",
        sentinel.port
    ))
    .await;
    recovers(&cache).await;
    works(&cache).await.expect("the first master");
    let epoch = cache.epoch("moved").await;
    // The sentinel must have discovered the replica, and the replica must be in sync.
    let start = Instant::now();
    while sentinel
        .command::<String>(&["SENTINEL", "FAILOVER", "mymaster"])
        .await
        .is_err()
    {
        assert!(start.elapsed() < MINUTE, "the sentinel does not fail over");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    while second
        .command::<Vec<::redis::Value>>(&["ROLE"])
        .await
        .is_ok_and(|role| role[0] != b_master())
    {
        assert!(start.elapsed() < MINUTE, "the replica does not take over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(first);
    while cache.set("moved", b"1", MINUTE).await.is_err() {
        assert!(
            start.elapsed() < MINUTE,
            "the cache does not find the new master"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let moved: i64 = second
        .command(&["EXISTS", "postern:moved"])
        .await
        .expect("answers");
    assert_eq!(moved, 1);
    assert_ne!(
        cache.epoch("moved").await,
        epoch,
        "taken values may reappear"
    );
}

fn b_master() -> ::redis::Value {
    ::redis::Value::BulkString(b"master".to_vec())
}
