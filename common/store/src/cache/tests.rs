//! Tests of behaviour that both caches share.

mod attempts;
mod connection;
mod failover;
mod servers;
mod tls;

use tokio::time::Instant;

use super::testing::TestCache;
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn value_can_be_set_read_replaced_and_deleted() {
    for TestCache { cache, url } in testing::both().await {
        assert_eq!(cache.get("a").await, Ok(None), "{url}");
        cache.set("a", b"\x00\xff1", MINUTE).await.expect("set");
        assert_eq!(
            cache.get("a").await,
            Ok(Some(b"\x00\xff1".to_vec())),
            "{url}"
        );
        cache.set("a", b"2", MINUTE).await.expect("set");
        assert_eq!(
            cache.get("postern:a").await,
            Ok(Some(b"2".to_vec())),
            "{url}: the prefix may be written out"
        );
        assert_eq!(cache.delete("a").await, Ok(true), "{url}");
        assert_eq!(cache.delete("a").await, Ok(false), "{url}");
        cache.ping().await.expect("answers");
    }
}

#[tokio::test]
async fn concurrent_takes_return_the_value_once() {
    for TestCache { cache, url } in testing::both().await {
        for round in 0..50_u8 {
            cache.set("once", &[round], MINUTE).await.expect("set");
            let taker = |_| {
                let cache = cache.clone();
                tokio::spawn(async move { cache.take_with_epoch("once").await.expect("answers").0 })
            };
            let taken = futures_util::future::join_all((0..16).map(taker)).await;
            let winners: Vec<Vec<u8>> = taken
                .into_iter()
                .filter_map(|taken| taken.expect("no panic"))
                .collect();
            assert_eq!(winners, [[round]], "{url}");
        }
    }
}

#[tokio::test]
async fn concurrent_set_if_absent_succeeds_once() {
    for TestCache { cache, url } in testing::both().await {
        let setter = |n: u8| {
            let cache = cache.clone();
            tokio::spawn(async move {
                cache
                    .set_if_absent("first", &[n], MINUTE)
                    .await
                    .expect("answers")
            })
        };
        let kept = futures_util::future::join_all((0..16).map(setter)).await;
        assert_eq!(
            kept.into_iter()
                .filter(|kept| *kept.as_ref().expect("no panic"))
                .count(),
            1,
            "{url}"
        );
    }
}

#[tokio::test]
async fn concurrent_increments_count_in_a_fixed_window() {
    for TestCache { cache, url } in testing::both().await {
        let counter = |_| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.increment("n", MINUTE).await.expect("answers") })
        };
        let counts = futures_util::future::join_all((0..32).map(counter)).await;
        let mut counts: Vec<u64> = counts
            .into_iter()
            .map(|count| count.expect("no panic"))
            .collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=32).collect::<Vec<u64>>(), "{url}");
        cache
            .set("text", b"not a number", MINUTE)
            .await
            .expect("set");
        assert_eq!(
            cache.increment("text", MINUTE).await,
            Err(CacheError::Unavailable),
            "{url}"
        );
        cache
            .ping()
            .await
            .expect("a rejected command does not break the cache");
    }
}

/// This test waits, because the clock of Redis cannot be controlled.
#[tokio::test]
async fn slots_follow_each_other_at_the_interval() {
    for TestCache { cache, url } in testing::both().await {
        let interval = Duration::from_secs(7);
        let reserve = async || cache.reserve_slot("pace", interval).await.expect("answers");
        let began = Instant::now();
        for place in 0..4 {
            let (wait, slot) = (reserve().await, interval * place);
            assert!(wait <= slot, "{url}: {wait:?} before {slot:?}");
            let precision = Duration::from_millis(2);
            let end = wait + began.elapsed() + precision;
            assert!(end >= slot, "{url}: {wait:?}, {slot:?}");
        }
        // A slot far ahead is of a time before the clock was set back.
        let short = Duration::from_millis(1);
        let wait = cache.reserve_slot("pace", short).await.expect("answers");
        assert_eq!(wait, Duration::ZERO, "{url}");
    }
}

#[tokio::test]
async fn every_kind_of_entry_expires() {
    for TestCache { cache, url } in testing::both().await {
        let short = Duration::from_millis(40);
        cache.set("a", b"1", short).await.expect("set");
        assert!(cache.set_if_absent("b", b"1", short).await.expect("set"));
        cache.increment("n", short).await.expect("counted");
        cache.increment("n", MINUTE).await.expect("counted");
        let lock = cache
            .lock("l", short)
            .await
            .expect("answers")
            .expect("free");
        let start = Instant::now();
        while cache.get("a").await != Ok(None) || start.elapsed() < short * 2 {
            assert!(start.elapsed() < MINUTE, "{url}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(cache.get("b").await, Ok(None), "{url}");
        assert_eq!(
            cache.increment("n", MINUTE).await,
            Ok(1),
            "{url}: the window starts at the first increment"
        );
        let other = cache
            .lock("l", MINUTE)
            .await
            .expect("answers")
            .expect("free again");
        lock.release().await;
        assert!(
            cache.lock("l", MINUTE).await.expect("answers").is_none(),
            "{url}: a lock of another holder is not released"
        );
        other.release().await;
        assert!(
            cache.lock("l", MINUTE).await.expect("answers").is_some(),
            "{url}"
        );
    }
}

#[tokio::test]
async fn dropped_lock_is_released() {
    for TestCache { cache, url } in testing::both().await {
        drop(
            cache
                .lock("l", MINUTE)
                .await
                .expect("answers")
                .expect("free"),
        );
        let start = Instant::now();
        while cache.lock("l", MINUTE).await.expect("answers").is_none() {
            assert!(start.elapsed() < MINUTE, "{url}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn cancelled_lock_call_leaves_no_lock_behind() {
    for TestCache { cache, url } in testing::both().await {
        let mut taking = Box::pin(cache.lock("l", MINUTE));
        // After Redis has executed the command, before the caller sees the answer.
        while futures_util::poll!(taking.as_mut()).is_pending()
            && cache.get("l").await.expect("answers").is_none()
        {}
        drop(taking);
        let run = cache.with_lock("l", MINUTE, Duration::from_secs(5), async {});
        assert_eq!(run.await, Ok(Some(())), "{url}");
    }
}

#[tokio::test]
async fn waiter_acquires_the_lock_once_it_is_free() {
    for TestCache { cache, url } in testing::both().await {
        let held = cache
            .lock("l", MINUTE)
            .await
            .expect("answers")
            .expect("free");
        let none = cache.with_lock("l", MINUTE, Duration::from_millis(60), async {});
        assert_eq!(none.await, Ok(None), "{url}");
        let free = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            held.release().await;
        };
        let run = cache.with_lock("l", MINUTE, MINUTE, async { "done" });
        let (done, ()) = tokio::join!(run, free);
        assert_eq!(done, Ok(Some("done")), "{url}");
    }
}

#[tokio::test]
async fn lock_of_cancelled_work_is_released() {
    for TestCache { cache, url } in testing::both().await {
        let (entered, has_entered) = tokio::sync::oneshot::channel();
        let work = async {
            entered.send(()).expect("waits");
            std::future::pending::<()>().await;
        };
        let mut run = Box::pin(cache.with_lock("l", MINUTE, MINUTE, work));
        tokio::select! {
            _ = run.as_mut() => panic!("{url}: the work does not end"),
            _ = has_entered => {}
        }
        let held = cache.with_lock("l", MINUTE, Duration::ZERO, async {});
        assert_eq!(held.await, Ok(None), "{url}");
        drop(run);
        let free = cache.with_lock("l", MINUTE, Duration::from_secs(5), async {});
        assert_eq!(free.await, Ok(Some(())), "{url}");
    }
}

#[tokio::test]
async fn value_is_stored_in_its_epoch_and_taken_once() {
    for TestCache { cache, url } in testing::both().await {
        assert!(
            !cache
                .set_if_absent_in("of another", "c", b"1", MINUTE)
                .await
                .expect("answers"),
            "{url}"
        );
        let epoch = cache.epoch("c").await.expect("an epoch");
        assert!(
            cache
                .set_if_absent_in(&epoch, "c", b"1", MINUTE)
                .await
                .expect("answers"),
            "{url}"
        );
        assert!(
            !cache
                .set_if_absent_in(&epoch, "c", b"1", MINUTE)
                .await
                .expect("answers"),
            "{url}"
        );
        assert_eq!(
            cache.take_with_epoch("c").await,
            Ok((Some(b"1".to_vec()), epoch.clone())),
            "{url}"
        );
        assert_eq!(cache.take_with_epoch("c").await, Ok((None, epoch)), "{url}");
    }
}

#[tokio::test]
async fn memory_cache_expires_by_its_clock() {
    let clock = Clock::manual(postern_core::clock::Timestamp(0));
    let cache = Cache::memory(clock.clone());
    cache.set("a", b"1", MINUTE).await.expect("room");
    clock.advance(MINUTE - Duration::from_millis(1));
    assert!(cache.get("a").await.expect("answers").is_some());
    clock.advance(Duration::from_millis(1));
    assert_eq!(cache.get("a").await, Ok(None));
}

#[tokio::test]
async fn url_is_parsed_and_mistakes_hide_the_password() {
    for good in [
        "memory:",
        "memory:?namespace=blue",
        "redis://127.0.0.1",
        "redis://:hunter2@127.0.0.1:6379/3",
        "rediss://u:hunter2@cache.example:6380",
        "redis-cluster://u:hunter2@a:1,b:2,[::1]:3",
        "redis-sentinel://:hunter2@a:26379,b:26379/mymaster/2?sentinel_password=hunter3",
    ] {
        let cache = Cache::open(good)
            .await
            .unwrap_or_else(|exit| panic!("{good}: {exit}"));
        assert!(!cache.label().contains("hunter"), "{}", cache.label());
    }
    for (bad, reason) in [
        ("", "must be a URL"),
        ("memcached://a", "`memcached:` is not a cache"),
        ("redis://:pa/ss@a", "percent-encode `@ / : ? #`"),
        ("redis://:12#ss@a", "percent-encode"),
        ("redis://", "names no host"),
        ("redis://a,b", "names several servers"),
        ("redis://:hunter2@a/x", "a"),
        (
            "redis://a?namspace=b",
            "`namspace` is not a known parameter",
        ),
        ("redis://a?namespace=b:c", "without a colon"),
        ("memory:?namespace=", "without a colon"),
        ("redis://a?deadline=0ms", "deadline must be 1ms to 60000ms"),
        ("redis://a?ca=/x", "ca is for the schemes"),
        ("rediss://a?ca=/nowhere/x", "cannot read ca /nowhere/x"),
        ("redis://a?deadline=5", "deadline must be 1ms to 60000ms"),
        ("redis-cluster://a/3", "a cluster has no database number"),
        (
            "redis-sentinel://:hunter2@a",
            "the path must name the master",
        ),
    ] {
        let exit = Cache::open(bad).await.expect_err(bad);
        assert_eq!(exit.status(), 64, "{bad}");
        assert!(
            exit.message().contains(reason) && !exit.message().contains("hunter2"),
            "{bad}: {exit}"
        );
    }
}

#[tokio::test]
async fn namespaces_are_separate() {
    let (a, b) = (testing::redis().await.cache, testing::redis().await.cache);
    a.set("k", b"1", MINUTE).await.expect("set");
    assert_eq!(b.get("k").await, Ok(None));
}

#[tokio::test]
async fn epoch_is_stable_within_a_run() {
    for TestCache { cache, url } in testing::both().await {
        let first = cache.epoch("k").await.expect("answers");
        assert_eq!(
            cache.epoch("another").await.as_deref(),
            Ok(first.as_str()),
            "{url}"
        );
        assert!(first.len() >= 32, "{url}: {first:?}");
    }
    assert_ne!(
        Cache::memory(Clock::system()).epoch("k").await,
        Cache::memory(Clock::system()).epoch("k").await
    );
}
