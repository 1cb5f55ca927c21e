//! The rate limit of a provider, shared by all replicas.

use std::time::Duration;

use parking_lot::Mutex;
use postern_store::cache::Cache;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A limit of calls per second to one provider over all replicas, at a common pace in the shared
/// cache: each call gets a time slot, in the order of the reservations. A replica reserves one slot
/// at a time, so that replicas with waiting calls take turns; above 50 per second the slots of 50
/// ms. It asks for the next ones while it uses these, so that a slow cache does not set the pace: the
/// rate is kept as long as the cache answers within 50 ms, or within an interval up to 50 per
/// second. After a pause a replica may use up to two reservations at once. While the cache is
/// unavailable, each replica has a pace of its own.
pub(crate) struct ProviderRate {
    cache: Cache,
    key: String,
    interval: Duration,
    /// The number of slots of a reservation.
    batch: u32,
    /// How much earlier than its slot a call may be made, so that short intervals are not extended
    /// by the precision of timers.
    lead: Duration,
    /// The beginning of the next slot that is reserved and not used, and the number of such slots.
    reserved: Mutex<(Instant, u32)>,
    /// The reservation in progress, which a cancelled call leaves to the next one.
    following: tokio::sync::Mutex<Option<JoinHandle<Option<Instant>>>>,
    /// The next slot while the cache is unavailable.
    next_local: Mutex<Instant>,
}

/// The lead of calls at more than 50 per second, and as much again for urgent ones.
const LEAD: Duration = Duration::from_millis(20);
/// The time of which the slots are reserved at once, at more than 50 per second.
const BATCH: Duration = Duration::from_millis(50);

impl ProviderRate {
    pub(crate) fn new(cache: Cache, name: &str, per_second: u64) -> Self {
        let per_second = u32::try_from(per_second.max(1)).unwrap_or(u32::MAX);
        let interval = Duration::from_secs(1) / per_second;
        let is_fast = interval < LEAD;
        let slots = BATCH.as_nanos().div_ceil(interval.as_nanos().max(1));
        Self {
            cache,
            key: format!("notify:pace:{name}"),
            interval,
            batch: if is_fast {
                u32::try_from(slots).unwrap_or(1)
            } else {
                1
            },
            lead: if is_fast { LEAD } else { Duration::ZERO },
            reserved: Mutex::new((Instant::now(), 0)),
            following: tokio::sync::Mutex::default(),
            next_local: Mutex::new(Instant::now()),
        }
    }

    /// Reserves slots, unless there are some that were not used, and asks for the next ones when half
    /// of them are used.
    pub(crate) async fn reserve(&self) {
        let left = self.reserved.lock().1;
        if left > self.batch.div_ceil(2) {
            return;
        }
        let mut following = self.following.lock().await;
        let call = following.get_or_insert_with(|| {
            let (cache, key) = (self.cache.clone(), self.key.clone());
            let time = self.interval * self.batch;
            tokio::spawn(async move {
                let wait = cache.reserve_slot(&key, time).await.ok()?;
                Some(Instant::now() + wait)
            })
        });
        if left > 0 {
            return;
        }
        let slot = call.await.ok().flatten();
        let slot = slot.unwrap_or_else(|| self.reserve_locally());
        *following = None;
        *self.reserved.lock() = (slot, self.batch);
    }

    /// Uses the reserved slot for a call. An urgent call may be made further ahead of it.
    ///
    /// # Errors
    /// The time until the call may be made.
    pub(crate) fn try_use(&self, urgent: bool) -> Result<(), Duration> {
        let lead = self.lead * if urgent { 2 } else { 1 };
        let mut reserved = self.reserved.lock();
        let (slot, left) = *reserved;
        let wait = slot.saturating_duration_since(Instant::now() + lead);
        if left > 0 && !wait.is_zero() {
            return Err(wait);
        }
        *reserved = (slot + self.interval, left.saturating_sub(1));
        Ok(())
    }

    fn reserve_locally(&self) -> Instant {
        let mut next = self.next_local.lock();
        let slot = Instant::now().max(*next);
        *next = slot + self.interval * self.batch;
        slot
    }
}

#[cfg(test)]
mod tests {
    use postern_core::Clock;
    use postern_core::clock::Timestamp;
    use postern_store::cache::testing;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;

    /// Lets replicas with waiting calls poll for a second, always the first one first. Returns the
    /// calls of each, and the most of a millisecond.
    async fn poll(replicas: &[ProviderRate; 3], clock: &Clock) -> ([u64; 3], u64) {
        let (mut calls, mut most) = ([0; 3], 0);
        for _ in 0..1000 {
            let before: u64 = calls.iter().sum();
            for (replica, calls) in replicas.iter().zip(&mut calls) {
                replica.reserve().await;
                while replica.try_use(false).is_ok() {
                    *calls += 1;
                    replica.reserve().await;
                }
            }
            most = most.max(calls.iter().sum::<u64>() - before);
            clock.advance(Duration::from_millis(1));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        (calls, most)
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_share_the_rate_in_turn() {
        for per_second in [3, 7, 40, 50, 51, 120, 2_000] {
            let clock = Clock::manual(Timestamp(1_700_000_000_000));
            let cache = Cache::memory(clock.clone());
            let replicas = [(); 3].map(|()| ProviderRate::new(cache.clone(), "smtp", per_second));
            let (calls, most) = poll(&replicas, &clock).await;
            let ahead = if per_second > 50 { per_second / 50 } else { 0 };
            let sum: u64 = calls.iter().sum();
            let sums = per_second..=per_second + ahead + 1;
            assert!(sums.contains(&sum), "{per_second}: {calls:?}");
            let limit = ahead + per_second.div_ceil(1000) + 1;
            assert!(most <= limit, "{per_second}: {most}");
            // Above that, the first one to be polled takes several in a millisecond.
            if per_second <= 50 {
                let most = calls.map(|some| calls.map(|few| some.saturating_sub(few)));
                assert!(most.concat().iter().all(|more| *more <= 2), "{calls:?}");
            }
        }
    }

    /// Returns the URL of a way to the cache server on which each answer takes `delay` more.
    async fn slow_way(server: &str, delay: Duration) -> String {
        let mut url: url::Url = server.parse().expect("URL");
        let host = url.host_str().expect("a host").to_owned();
        let target = (host, url.port().unwrap_or(6379));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let port = listener.local_addr().expect("address").port();
        url.set_host(Some("127.0.0.1")).expect("a host");
        url.set_port(Some(port)).expect("a port");
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = TcpStream::connect(target.clone()).await.expect("a server");
                tokio::spawn(async move {
                    let (mut from_client, mut to_client) = client.split();
                    let (mut from_server, mut to_server) = server.split();
                    let (sender, mut receiver) = mpsc::unbounded_channel();
                    let answers = async move {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                            let due = Instant::now() + delay;
                            let _closed = sender.send((due, bytes[..count].to_vec()));
                        }
                    };
                    let delayed = async move {
                        while let Some((due, bytes)) = receiver.recv().await {
                            tokio::time::sleep_until(due).await;
                            let _closed = to_client.write_all(&bytes).await;
                        }
                    };
                    let requests = tokio::io::copy(&mut from_client, &mut to_server);
                    tokio::join!(answers, delayed, requests)
                });
            }
        });
        url.into()
    }

    #[tokio::test]
    async fn slow_cache_does_not_set_the_pace() {
        let cases = [(1_000, 5), (1_000, 30), (100, 20), (100, 40), (40, 15)];
        let runs = cases.map(|(per_second, delay_ms)| async move {
            let server = testing::redis().await.url;
            let url = slow_way(&server, Duration::from_millis(delay_ms)).await;
            let cache = Cache::open(&url, &Clock::system()).expect("a cache");
            let rate = ProviderRate::new(cache, "smtp", per_second);
            rate.reserve().await;
            let end = Instant::now() + Duration::from_secs(2);
            let mut calls = 0;
            while Instant::now() < end {
                rate.reserve().await;
                match rate.try_use(false) {
                    Ok(()) => calls += 1,
                    Err(wait) => tokio::time::sleep(wait).await,
                }
            }
            let expected = per_second * 2;
            // 50 ms ahead. A machine that is busy with other tests makes fewer calls, a cache that sets the pace a quarter.
            let range = expected / 2..=expected + per_second / 20 + 2;
            let case = format!("{per_second} at {delay_ms} ms: {calls}");
            assert!(range.contains(&calls), "{case}");
        });
        futures_util::future::join_all(runs).await;
    }

    #[tokio::test(start_paused = true)]
    async fn unused_slot_is_kept() {
        let cache = Cache::memory(Clock::manual(Timestamp(1_000)));
        let rate = ProviderRate::new(cache, "smtp", 4);
        rate.reserve().await;
        assert_eq!(rate.try_use(false), Ok(()));
        for _ in 0..3 {
            rate.reserve().await;
            assert_eq!(rate.try_use(true), Err(Duration::from_millis(250)));
        }
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(rate.try_use(false), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn replica_keeps_the_pace_while_the_cache_is_unavailable() {
        let cache = Cache::memory(Clock::manual(Timestamp(1_000)));
        let rate = ProviderRate::new(cache, "smtp", 4);
        let now = Instant::now();
        let slots = [(); 3].map(|()| rate.reserve_locally() - now);
        assert_eq!(slots, [0, 250, 500].map(Duration::from_millis));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(rate.reserve_locally() - now, Duration::from_secs(9));
    }
}
