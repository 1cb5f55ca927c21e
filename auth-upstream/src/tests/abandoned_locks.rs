//! Locks that a killed replica has left behind.

use std::future::pending;
use std::time::{Duration, Instant};

use postern_common::Problem;
use postern_common::cache::Cache;
use postern_common::cache::testing::RedisServer;
use serde_json::json;
use tokio::sync::oneshot;

use crate::flows::UserLocks;
use crate::testing::browser::sign_in;
use crate::testing::{Fixture, FixtureOptions, email};

const ADA: &str = "ada@example.com";

/// Locks an address and ends like a killed process: the lock is neither renewed nor released.
fn lock_and_die(url: String) {
    let holder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let cache = runtime.block_on(Cache::open(&url)).expect("a URL");
        let (acquired, is_acquired) = oneshot::channel();
        let mut held = Box::pin(async move {
            let work = async {
                acquired.send(()).expect("awaited");
                pending::<Result<(), Problem>>().await
            };
            UserLocks::new(cache).with_address(&email(ADA), work).await
        });
        runtime.block_on(async {
            tokio::select! {
                ended = &mut held => panic!("{ended:?}"),
                acquired = is_acquired => acquired.expect("free"),
            }
        });
        drop(runtime);
        drop(held);
    });
    holder.join().expect("no panic");
}

#[tokio::test]
async fn sign_in_takes_over_the_lock_of_a_killed_replica() {
    let redis = RedisServer::start(&[]).await;
    // A long deadline, for loaded machines.
    let url = format!("{}?deadline=2000ms", redis.url());
    let fixture = Fixture::with(FixtureOptions {
        cache_url: Some(url.clone()),
        ..FixtureOptions::default()
    })
    .await;
    lock_and_die(url);
    let began = Instant::now();
    let landing = sign_in(&fixture, json!({})).await;
    assert_eq!(landing.name, "temporaryToken", "{}", landing.value);
    let elapsed = began.elapsed();
    assert!(
        elapsed > Duration::from_secs(1),
        "it did not wait: {elapsed:?}"
    );
    // The lease is 2.5 s; the rest allows for a busy machine.
    assert!(elapsed < Duration::from_secs(6), "{elapsed:?}");
}
