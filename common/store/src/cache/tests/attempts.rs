//! Reserved attempts, with both caches.

use super::testing::memory;
use super::*;
use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;

/// Three free attempts; the third starts a delay.
const POLICY: AttemptPolicy = AttemptPolicy {
    free: 3,
    delayed_from: 3,
    window: Duration::from_secs(60),
    delays: Backoff::new(Duration::from_secs(1), Duration::from_secs(8)),
};

async fn reserve(cache: &Cache, policy: &AttemptPolicy) -> Option<AttemptReservation> {
    let reserved = cache.reserve_attempt("n", policy).await;
    reserved.expect("answers")
}

async fn settle(cache: &Cache, reservation: &AttemptReservation, outcome: AttemptOutcome) {
    let settled = cache.settle_attempt("n", &POLICY, reservation, outcome);
    settled.await.expect("answers");
}

async fn reserve_at_once(cache: &Cache, callers: u8) -> Vec<AttemptReservation> {
    let reserve = |cache: Cache, _| async move { cache.reserve_attempt("n", &POLICY).await };
    let reserved = at_once(callers, reserve, cache).await;
    reserved.into_iter().flatten().collect()
}

#[tokio::test]
async fn concurrent_attempts_do_not_exceed_the_limit() {
    for TestCache { cache, url } in both().await {
        let reserved = reserve_at_once(&cache, 32).await;
        assert_eq!(reserved.len(), 3, "{url}");
        for reservation in &reserved {
            settle(&cache, reservation, AttemptOutcome::Released).await;
        }
        assert_eq!(cache.get("n").await, Ok(None), "{url}: no entry is left");
        let reserved = reserve_at_once(&cache, 32).await;
        assert_eq!(reserved.len(), 3, "{url}: all were given back");
        settle(&cache, &reserved[0], AttemptOutcome::Released).await;
        let reserved = reserve_at_once(&cache, 32).await;
        assert_eq!(reserved.len(), 1, "{url}: one was given back");
    }
}

#[tokio::test]
async fn one_attempt_is_admitted_after_a_delay() {
    let policy = AttemptPolicy {
        delays: Backoff::new(Duration::from_millis(300), Duration::from_secs(8)),
        ..POLICY
    };
    for TestCache { cache, url } in both().await {
        for _ in 0..3 {
            let reservation = reserve(&cache, &policy).await.expect("free");
            let settled = cache.settle_attempt("n", &policy, &reservation, AttemptOutcome::Failed);
            settled.await.expect("answers");
        }
        assert_eq!(reserve(&cache, &policy).await, None, "{url}");
        tokio::time::sleep(Duration::from_millis(400)).await;
        // The other policy only makes the next delay longer than this test.
        assert_eq!(reserve_at_once(&cache, 32).await.len(), 1, "{url}");
    }
}

/// Reserves the free attempts of a cache with a manual clock.
async fn three_attempts() -> (Clock, Cache, Vec<AttemptReservation>) {
    let clock = Clock::manual(Timestamp(1_000_000));
    let TestCache { cache, .. } = memory(clock.clone());
    let mut reserved = Vec::new();
    for _ in 0..3 {
        reserved.extend(reserve(&cache, &POLICY).await);
    }
    (clock, cache, reserved)
}

#[tokio::test]
async fn failure_extends_a_shorter_delay() {
    let (clock, cache, mut reserved) = three_attempts().await;
    // The pool is slow: each delay ends before the attempts have failed.
    for seconds in [1, 1, 2] {
        clock.advance(Duration::from_secs(seconds));
        reserved.extend(reserve(&cache, &POLICY).await);
    }
    assert_eq!(reserved.len(), 6);
    for reservation in &reserved {
        settle(&cache, reservation, AttemptOutcome::Failed).await;
    }
    clock.advance(Duration::from_millis(3_999));
    assert_eq!(reserve(&cache, &POLICY).await, None, "4 s for six failures");
    clock.advance(Duration::from_millis(1));
    assert!(reserve(&cache, &POLICY).await.is_some());
}

#[tokio::test]
async fn release_does_not_end_the_delay_of_a_later_attempt() {
    let (clock, cache, reserved) = three_attempts().await;
    settle(&cache, &reserved[0], AttemptOutcome::Failed).await;
    settle(&cache, &reserved[1], AttemptOutcome::Failed).await;
    clock.advance(Duration::from_secs(1));
    let later = reserve(&cache, &POLICY).await.expect("after the delay");
    settle(&cache, &reserved[2], AttemptOutcome::Released).await;
    let refused = reserve(&cache, &POLICY).await;
    assert_eq!(refused, None, "the delay belongs to the later attempt");
    settle(&cache, &later, AttemptOutcome::Released).await;
    assert!(reserve(&cache, &POLICY).await.is_some());
}

#[tokio::test]
async fn attempt_of_an_ended_window_is_not_given_back_twice() {
    for TestCache { cache, url } in both().await {
        let old = reserve(&cache, &POLICY).await.expect("free");
        cache.delete("n").await.expect("answers");
        let reserved = reserve_at_once(&cache, 32).await;
        assert_eq!(reserved.len(), 3, "{url}");
        settle(&cache, &old, AttemptOutcome::Released).await;
        assert_eq!(reserve(&cache, &POLICY).await, None, "{url}");
        settle(&cache, &old, AttemptOutcome::Failed).await;
        assert_eq!(cache.attempt_count("n").await, Ok(4), "{url}");
    }
}

#[tokio::test]
async fn clock_that_is_set_back_does_not_prolong_a_delay() {
    for TestCache { cache, url } in both().await {
        let later = Clock::system().now().plus(MINUTE * 60).0;
        let stored = format!("era 3 0 {later} {later} -");
        let set = cache.set("n", stored.as_bytes(), MINUTE);
        set.await.expect("set");
        assert!(reserve(&cache, &POLICY).await.is_some(), "{url}");
        assert_eq!(reserve(&cache, &POLICY).await, None, "{url}: a new delay");
    }
}

/// A policy whose times are not over before a test is.
const SLOW_POLICY: AttemptPolicy = AttemptPolicy {
    window: Duration::from_secs(3_600),
    delays: Backoff::new(MINUTE, Duration::from_secs(480)),
    ..POLICY
};

async fn fields(cache: &Cache) -> Option<Vec<String>> {
    let stored = cache.get("n").await.expect("answers")?;
    let text = String::from_utf8(stored).expect("text");
    Some(text.split(' ').map(str::to_owned).collect())
}

/// A counter without tokens, its times relative to now and rounded to minutes.
async fn state(cache: &Cache) -> Option<String> {
    let fields = fields(cache).await?;
    let now = Clock::system().now().0;
    let minutes = |field: &str| {
        let left = field.parse::<i64>().expect("a number") - now;
        (left.max(0) + 30_000) / 60_000
    };
    let (failures, pending, has_no_holder) = (&fields[1], &fields[2], fields[5] == "-");
    let (window, delay) = (minutes(&fields[3]), minutes(&fields[4]));
    Some(format!(
        "{failures} {pending} {window} {delay} {has_no_holder}"
    ))
}

async fn end_delay(cache: &Cache) {
    if let Some(mut fields) = fields(cache).await {
        fields[4] = "0".to_owned();
        let set = cache.set("n", fields.join(" ").as_bytes(), MINUTE).await;
        set.expect("set");
    }
}

#[tokio::test]
async fn both_caches_count_alike() {
    let caches = both().await.map(|store| store.cache);
    let mut reserved: Vec<[AttemptReservation; 2]> = Vec::new();
    let mut random = 7_usize;
    for step in 0..400 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let choice = random >> 33;
        let outcome = [AttemptOutcome::Failed, AttemptOutcome::Released][choice % 2];
        match choice % 7 {
            0..3 => {
                let [memory, redis] = [0, 1].map(|n: usize| reserve(&caches[n], &SLOW_POLICY));
                match (memory.await, redis.await) {
                    (Some(memory), Some(redis)) => reserved.push([memory, redis]),
                    (None, None) => {}
                    other => panic!("step {step}: {other:?}"),
                }
            }
            3..6 if !reserved.is_empty() => {
                let settled = reserved.swap_remove(choice / 7 % reserved.len());
                for (cache, reservation) in caches.iter().zip(&settled) {
                    let settled = cache.settle_attempt("n", &SLOW_POLICY, reservation, outcome);
                    settled.await.expect("answers");
                }
            }
            _ => {
                for cache in &caches {
                    // A failure count that grows without end would test the maximum delay only.
                    match step % 40 == 39 {
                        true => drop(cache.delete("n").await.expect("answers")),
                        false => end_delay(cache).await,
                    }
                }
            }
        }
        let [memory, redis] = [0, 1].map(|n: usize| state(&caches[n]));
        assert_eq!(memory.await, redis.await, "step {step}");
    }
}
