//! Tests with real servers that are killed, suspended and failed over: one server, a demoted master,
//! a cluster, and TLS.

use std::process::{Command, Stdio};

use super::testing::{RedisServer, free_port};
use super::*;

/// Makes every kind of call, to verify that each is routed.
async fn works(cache: &Cache) -> Result<(), CacheError> {
    for n in 0..20_u8 {
        let key = format!("key-{n}");
        let count = format!("count-{key}");
        // Before any other script: a restarted server has not loaded it.
        let epoch = cache.epoch(&key).await?;
        assert!(cache.set_if_absent_in(&epoch, &key, &[n], MINUTE).await?);
        assert_eq!(cache.take_with_epoch(&key).await?, (Some(vec![n]), epoch));
        assert_eq!(cache.increment(&count, MINUTE).await? % 1000, 1);
        let lock = cache.lock(&key, MINUTE).await?.expect("free");
        assert!(cache.lock(&key, MINUTE).await?.is_none());
        lock.release().await;
        cache.set(&key, &[n], MINUTE).await?;
        assert!(cache.delete(&key).await? && cache.delete(&count).await?);
    }
    assert_eq!(cache.epoch("key-1").await?.len(), 81);
    cache.ping().await.map_err(|_| CacheError::Unavailable)
}

/// Opens a cache with a longer deadline than the default, for a busy machine, and waits until it is
/// available.
async fn open(url: &str) -> Cache {
    let cache = Cache::open(&format!("{url}?deadline=2000ms"), &Clock::system()).expect("a URL");
    recovers(&cache).await;
    cache
}

/// Waits until the cache is available again.
async fn recovers(cache: &Cache) {
    eventually("the cache recovers", async || cache.ping().await.is_ok()).await;
}

/// Works under a lock until it is lost.
async fn endless_work(held: lock::LockGuard) -> Result<(), CacheError> {
    let work = held.run(std::future::pending());
    let ended = tokio::time::timeout(Duration::from_secs(20), work).await;
    ended.expect("work ends when the lock is lost")
}

#[tokio::test]
async fn held_lock_is_renewed_and_work_ends_when_it_is_lost() {
    let mut server = RedisServer::start(&[]).await;
    let cache = open(&server.url()).await;
    let longer_than_a_lease = async {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            let other = cache.lock("l", MINUTE).await.expect("answers");
            assert!(other.is_none(), "it is renewed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let held = locked(&cache, MINUTE).await;
    assert_eq!(held.run(longer_than_a_lease).await, Ok(()));
    let held = locked(&cache, MINUTE).await;
    // As after a failover to a replica that does not have the lock.
    assert!(cache.delete("l").await.expect("answers"));
    let lost = Err(CacheError::Unavailable);
    assert_eq!(endless_work(held).await, lost, "another's");
    let held = locked(&cache, MINUTE).await;
    server.kill().await;
    assert_eq!(endless_work(held).await, lost, "unconfirmed");
}

#[tokio::test]
async fn server_without_memory_still_serves_reads() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]).await;
    let cache = open(&server.url()).await;
    let set = async |key| cache.set(key, b"1", MINUTE).await;
    set("kept").await.expect("there is memory");
    server.command("CONFIG SET maxmemory 1").await;
    for _ in 0..4 * redis::BREAKER_POLICY.failure_threshold {
        assert_eq!(set("more").await, Err(CacheError::Unavailable));
        let kept = cache.get("kept").await;
        assert_eq!(
            kept,
            Ok(Some(b"1".to_vec())),
            "rejected writes delete nothing"
        );
    }
    assert_eq!(cache.delete("kept").await, Ok(true));
}

#[tokio::test]
async fn conditional_write_on_demoted_master_is_an_error() {
    let server = RedisServer::start(&[]).await;
    // One cache per call, so that no circuit breaker decides the result.
    let caches = [open(&server.url()).await, open(&server.url()).await];
    let epoch = caches[0].epoch("a").await.expect("an epoch");
    server.command("REPLICAOF 127.0.0.1 1").await;
    let stored = caches[0].set_if_absent_in(&epoch, "b", b"1", MINUTE).await;
    assert_eq!(stored, Err(CacheError::Unavailable));
    let taken = caches[1].take_with_epoch("a").await;
    assert_eq!(taken, Err(CacheError::Unavailable));
}

#[tokio::test]
async fn cluster_serves_every_call() {
    let mut server = RedisServer::start(&["--cluster-enabled", "yes"]).await;
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let assign = format!("CLUSTER ADDSLOTS {}", slots.join(" "));
    server.command(&assign).await;
    let is_up = async || server.query::<String>("SET probe 1").await.is_ok();
    eventually("the cluster comes up", is_up).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:1", server.port());
    let cache = open(&format!("redis-cluster://{hosts}")).await;
    works(&cache).await.expect("a cluster");
    // The cluster connection reconnects silently, so the node's id is queried each time.
    let epoch = cache.epoch("a").await.expect("an epoch");
    server.kill().await;
    server.restart().await;
    recovers(&cache).await;
    let has_changed = async || cache.epoch("a").await.is_ok_and(|another| another != epoch);
    eventually("the restarted node has another epoch", has_changed).await;
}

#[tokio::test]
async fn tls_is_verified_against_the_configured_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, key] =
        ["tls.pem", "tls.key"].map(|name| folder.path().join(name).display().to_string());
    // A certificate that is its own authority.
    let made = Command::new("openssl")
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '))
        .args("-subj /CN=test -addext subjectAltName=IP:127.0.0.1".split(' '))
        .args("-addext basicConstraints=CA:FALSE -config /dev/null".split(' '))
        .args(["-out", &certificate, "-keyout", &key])
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl is installed").success());
    let port = free_port().to_string();
    let _server = RedisServer::start(&[
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &certificate,
        "--tls-auth-clients",
        "no",
        "--tls-port",
        &port,
    ])
    .await;
    let url = format!("rediss://127.0.0.1:{port}");
    let untrusting = Cache::open(&url, &Clock::system()).expect("a URL");
    let reason = untrusting.ping().await.expect_err("no public authority");
    assert!(!reason.is_empty(), "why");
    let trusting = format!("{url}?deadline=5000ms&ca={certificate}");
    let cache = Cache::open(&trusting, &Clock::system()).expect("a URL");
    works(&cache).await.expect("over TLS");
}
