//! Tests of behaviour that both caches share.

mod attempts;
mod connection;
mod servers;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::testing::{TestCache, both};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < MINUTE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the answers of concurrent calls, the arguments of which are their numbers.
async fn at_once<T: Send + 'static, F>(
    calls: u8,
    call: impl Fn(Cache, u8) -> F,
    cache: &Cache,
) -> Vec<T>
where
    F: Future<Output = Result<T, CacheError>> + Send + 'static,
{
    let calls = (0..calls).map(|number| tokio::spawn(call(cache.clone(), number)));
    let answers = join_all(calls).await.into_iter();
    answers
        .map(|answer| answer.expect("no panic").expect("answers"))
        .collect()
}

#[tokio::test]
async fn value_can_be_set_read_replaced_and_deleted() {
    for TestCache { cache, url } in both().await {
        let stored = |value: &[u8]| Ok(Some(value.to_vec()));
        assert_eq!(cache.get("a").await, Ok(None), "{url}");
        cache.set("a", b"\x00\xff1", MINUTE).await.expect("set");
        assert_eq!(cache.get("a").await, stored(b"\x00\xff1"), "{url}");
        cache.set("a", b"2", MINUTE).await.expect("set");
        let written_out = cache.get("postern:a").await;
        assert_eq!(written_out, stored(b"2"), "{url}");
        assert_eq!(cache.delete("a").await, Ok(true), "{url}");
        assert_eq!(cache.delete("a").await, Ok(false), "{url}");
        cache.ping().await.expect("answers");
    }
}

#[tokio::test]
async fn concurrent_calls_take_and_store_once() {
    for TestCache { cache, url } in both().await {
        for round in 0..50_u8 {
            cache.set("once", &[round], MINUTE).await.expect("set");
            let take = |cache: Cache, _| async move { cache.take_with_epoch("once").await };
            let taken = at_once(16, take, &cache).await;
            let winners: Vec<_> = taken.into_iter().filter_map(|(value, _)| value).collect();
            assert_eq!(winners, [[round]], "{url}");
        }
        let set = |cache: Cache, n| async move { cache.set_if_absent("first", &[n], MINUTE).await };
        let stored = at_once(16, set, &cache).await;
        assert_eq!(stored.iter().filter(|stored| **stored).count(), 1, "{url}");
    }
}

#[tokio::test]
async fn concurrent_increments_count_in_a_fixed_window() {
    for TestCache { cache, url } in both().await {
        let count = |cache: Cache, _| async move { cache.increment("n", MINUTE).await };
        let mut counts = at_once(32, count, &cache).await;
        counts.sort_unstable();
        assert_eq!(counts, (1..=32).collect::<Vec<u64>>(), "{url}");
        let set = cache.set("text", b"not a number", MINUTE);
        set.await.expect("set");
        let rejected = cache.increment("text", MINUTE).await;
        assert_eq!(rejected, Err(CacheError::Unavailable), "{url}");
        let answer = cache.ping().await;
        answer.expect("a rejected command does not break the cache");
    }
}

/// This test waits, because the clock of Redis cannot be controlled.
#[tokio::test]
async fn slots_follow_each_other_at_the_interval() {
    for TestCache { cache, url } in both().await {
        let interval = Duration::from_secs(7);
        let reserve = async |time| cache.reserve_slot("pace", time).await.expect("answers");
        let began = Instant::now();
        for place in 0..4 {
            let (wait, slot) = (reserve(interval).await, interval * place);
            assert!(wait <= slot, "{url}: {wait:?} before {slot:?}");
            let precision = Duration::from_millis(2);
            let end = wait + began.elapsed() + precision;
            assert!(end >= slot, "{url}: {wait:?}, {slot:?}");
        }
        // A slot far ahead is of a time before the clock was set back.
        let wait = reserve(Duration::from_millis(1)).await;
        assert_eq!(wait, Duration::ZERO, "{url}");
    }
}

async fn locked(cache: &Cache, ttl: Duration) -> lock::LockGuard {
    let lock = cache.lock("l", ttl).await.expect("answers");
    lock.expect("free")
}

async fn is_locked(cache: &Cache) -> bool {
    let lock = cache.with_lock("l", MINUTE, Duration::ZERO, async {}).await;
    lock.expect("answers").is_none()
}

#[tokio::test]
async fn every_kind_of_entry_expires() {
    for TestCache { cache, url } in both().await {
        let short = Duration::from_millis(40);
        cache.set("a", b"1", short).await.expect("set");
        assert!(cache.set_if_absent("b", b"1", short).await.expect("set"));
        cache.increment("n", short).await.expect("counted");
        cache.increment("n", MINUTE).await.expect("counted");
        let lock = locked(&cache, short).await;
        let start = Instant::now();
        let is_over = async || start.elapsed() > short * 2 && cache.get("a").await == Ok(None);
        eventually("the entry expires", is_over).await;
        assert_eq!(cache.get("b").await, Ok(None), "{url}");
        let count = cache.increment("n", MINUTE).await;
        assert_eq!(
            count,
            Ok(1),
            "{url}: the window starts at the first increment"
        );
        let other = locked(&cache, MINUTE).await;
        lock.release().await;
        assert!(is_locked(&cache).await, "{url}: another's is not released");
        other.release().await;
        assert!(!is_locked(&cache).await, "{url}");
    }
}

#[tokio::test]
async fn dropped_or_cancelled_lock_is_released() {
    for TestCache { cache, url } in both().await {
        drop(locked(&cache, MINUTE).await);
        eventually("the lock is free", async || !is_locked(&cache).await).await;
        let mut taking = Box::pin(cache.lock("l", MINUTE));
        // After Redis has executed the command, before the caller sees the answer.
        while futures_util::poll!(taking.as_mut()).is_pending()
            && cache.get("l").await.expect("answers").is_none()
        {}
        drop(taking);
        let run = cache.with_lock("l", MINUTE, Duration::from_secs(5), async {});
        assert_eq!(run.await, Ok(Some(())), "{url}");
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
        assert!(is_locked(&cache).await, "{url}");
        drop(run);
        eventually("the lock is free", async || !is_locked(&cache).await).await;
    }
}

#[tokio::test]
async fn waiter_acquires_the_lock_once_it_is_free() {
    for TestCache { cache, url } in both().await {
        let held = locked(&cache, MINUTE).await;
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
async fn value_is_stored_in_its_epoch_and_taken_once() {
    for TestCache { cache, url } in both().await {
        let epoch = cache.epoch("c").await.expect("an epoch");
        assert!(epoch.len() >= 32, "{url}: {epoch:?}");
        assert_eq!(cache.epoch("another").await.as_ref(), Ok(&epoch), "{url}");
        for (of, expected) in [("of another", false), (&epoch, true), (&epoch, false)] {
            let stored = cache.set_if_absent_in(of, "c", b"1", MINUTE).await;
            assert_eq!(stored, Ok(expected), "{url}");
        }
        for value in [Some(b"1".to_vec()), None] {
            let taken = cache.take_with_epoch("c").await;
            assert_eq!(taken, Ok((value, epoch.clone())), "{url}");
        }
    }
    let new = || Cache::memory(Clock::system());
    assert_ne!(new().epoch("k").await, new().epoch("k").await);
}

#[test]
fn url_is_parsed_and_mistakes_hide_the_password() {
    let open = |url: &str| Cache::open(url, &Clock::system());
    for good in [
        "memory:",
        "memory:?namespace=blue",
        "redis://127.0.0.1",
        "redis://:hunter2@127.0.0.1:6379/3",
        "rediss://u:hunter2@cache.example:6380",
        "redis-cluster://u:hunter2@a:1,b:2,[::1]:3",
        "redis-sentinel://:hunter2@a:26379,b:26379/mymaster/2?sentinel_password=hunter3",
    ] {
        let cache = open(good).unwrap_or_else(|exit| panic!("{good}: {exit}"));
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
        let exit = open(bad).expect_err(bad);
        assert_eq!(exit.status(), 64, "{bad}");
        let message = exit.message();
        assert!(message.contains(reason), "{bad}: {exit}");
        assert!(!message.contains("hunter2"), "{bad}: {exit}");
    }
}

#[tokio::test]
async fn namespaces_are_separate() {
    let (a, b) = (testing::redis().await.cache, testing::redis().await.cache);
    a.set("k", b"1", MINUTE).await.expect("set");
    assert_eq!(b.get("k").await, Ok(None));
}
