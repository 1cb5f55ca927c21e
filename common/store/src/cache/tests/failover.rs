//! A master of Redis that has become a replica.

use super::super::*;
use super::MINUTE;
use super::servers::{Server, open, recovers};

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
