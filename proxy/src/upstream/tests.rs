use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod discovery;

use super::*;
use crate::config::{LoadBalancing, UpstreamAddress};
use crate::tests::read_tables;

fn config(load_balancing: LoadBalancing, addresses: usize) -> UpstreamConfig {
    let addresses = (1..=addresses).map(|port| format!("127.0.0.1:{port}"));
    let addresses: Vec<String> = addresses.collect();
    let table = format!("[upstream.test]\naddresses = {addresses:?}\nin_flight = 2\n");
    let config = read_tables(&table).expect("valid");
    let mut upstreams = config.upstreams.into_iter();
    let test = upstreams.find(|it| it.name == "test");
    UpstreamConfig {
        load_balancing,
        ..test.expect("the upstream")
    }
}

impl Endpoint {
    fn port(&self) -> u16 {
        self.address.as_inet().expect("an IP address").port()
    }
}

fn pool_of(config: UpstreamConfig) -> UpstreamPool {
    let resolver = Arc::default();
    let metrics = GatewayMetrics::new().expect("metrics");
    UpstreamPool::new(config, &resolver, &metrics).expect("a pool")
}

fn pool(load_balancing: LoadBalancing, addresses: usize) -> UpstreamPool {
    pool_of(config(load_balancing, addresses))
}

/// Picks an address for a request, or for a retry after this one.
#[track_caller]
fn pick(pool: &UpstreamPool, failed: Option<&Endpoint>) -> InFlightPermit {
    let picked = pool.pick(None, failed, Instant::now());
    picked.expect("an address")
}

fn ports(pool: &UpstreamPool, picks: usize) -> Vec<usize> {
    let mut count = vec![0; pool.endpoints().len() + 1];
    for _ in 0..picks {
        count[usize::from(pick(pool, None).endpoint.port())] += 1;
    }
    count
}

#[test]
fn less_loaded_address_is_chosen() {
    let pool = pool(LoadBalancing::LeastLoaded, 2);
    let first = pick(&pool, None);
    for _ in 0..20 {
        assert_ne!(pick(&pool, None).endpoint.address, first.endpoint.address);
    }
}

#[test]
fn failing_address_is_ejected_unless_panic() {
    let pool = pool(LoadBalancing::RoundRobin, 3);
    let all = pool.endpoints();
    (0..5).for_each(|_| pool.note_failure(&all[0], FailureCause::Reset, Instant::now()));
    let count = ports(&pool, 100);
    assert_eq!((count[1], count[2]), (0, 50));
    (0..5).for_each(|_| pool.note_failure(&all[1], FailureCause::Reset, Instant::now()));
    // Two of three ejected: panic mode.
    assert!(ports(&pool, 99).iter().skip(1).all(|count| *count == 33));
}

fn eject(pool: &UpstreamPool, at: usize) -> Arc<Endpoint> {
    let endpoint = Arc::clone(&pool.endpoints()[at]);
    (0..5).for_each(|_| pool.note_failure(&endpoint, FailureCause::Reset, Instant::now()));
    assert!(endpoint.status(pool.now_ms()).ejected);
    endpoint
}

const ALGORITHMS: [LoadBalancing; 2] = [LoadBalancing::RoundRobin, LoadBalancing::LeastLoaded];

#[test]
fn retry_uses_ejected_address_as_last_resort() {
    for algorithm in ALGORITHMS {
        let pool = pool(algorithm, 2);
        let ejected = eject(&pool, 0);
        assert_eq!(ports(&pool, 50), [0, 0, 50], "one of two ejected: no panic");
        let failed = pick(&pool, None);
        let retry = pick(&pool, Some(&failed.endpoint));
        assert_eq!(retry.endpoint.address, ejected.address);
    }
}

#[test]
fn ejected_addresses_are_used_without_alternative() {
    for (algorithm, addresses) in ALGORITHMS.into_iter().zip([2, 1]) {
        let mut pool = pool(algorithm, addresses);
        pool.config.outlier.panic_percent = 100;
        let only = eject(&pool, 0);
        (1..addresses).for_each(|at| drop(eject(&pool, at)));
        assert!(pool.pick(None, None, Instant::now()).is_ok(), "{addresses}");
        if addresses == 1 {
            assert_eq!(pick(&pool, Some(&only)).endpoint.address, only.address);
        }
    }
}

#[test]
fn ejected_address_precedes_unhealthy_one() {
    let mut pool = pool(LoadBalancing::RoundRobin, 3);
    pool.config.outlier.panic_percent = 100;
    let all = pool.endpoints();
    for endpoint in &all[..2] {
        endpoint.healthy.store(false, Ordering::Relaxed);
    }
    eject(&pool, 2);
    assert_eq!(ports(&pool, 10), [0, 0, 0, 10]);
    assert_ne!(pick(&pool, Some(&all[2])).endpoint.address, all[2].address);
}

#[test]
fn retry_in_panic_prefers_available_address() {
    for algorithm in ALGORITHMS {
        let pool = pool(algorithm, 3);
        let failed = [eject(&pool, 0), eject(&pool, 1)];
        for _ in 0..20 {
            let retry = pick(&pool, Some(&failed[0]));
            assert_eq!(retry.endpoint.port(), 3, "{algorithm:?}");
        }
    }
}

#[test]
fn ejection_time_resets_after_recovery() {
    let pool = pool(LoadBalancing::RoundRobin, 2);
    let bad = Arc::clone(&pool.endpoints()[0]);
    let at = |millis: u64| pool.created_at + Duration::from_millis(millis);
    let fail =
        |millis| (0..5).for_each(|_| pool.note_failure(&bad, FailureCause::Reset, at(millis)));
    fail(0);
    // 10 s.
    assert!(bad.status(9_999).ejected && !bad.status(10_000).ejected);
    pool.note_response(&bad, false, 1_000, at(11_000));
    fail(12_000);
    // 10 s again after recovery.
    assert!(bad.status(21_999).ejected && !bad.status(22_000).ejected);
    // Requests that started before the ejection.
    (0..9).for_each(|_| pool.note_response(&bad, false, 1_000_000, at(13_000)));
    fail(23_000);
    // 20 s: second consecutive ejection.
    assert!(bad.status(42_999).ejected && !bad.status(43_000).ejected);
    assert_eq!(pool.ejections.get(), 3);
}

#[test]
fn slow_address_is_chosen_less() {
    let pool = pool(LoadBalancing::LeastLoaded, 2);
    let [slow, fast] = [0, 1].map(|at| Arc::clone(&pool.endpoints()[at]));
    let now = Instant::now();
    pool.note_response(&slow, false, 5_000, now);
    pool.note_response(&fast, false, 2_000, now);
    // Nothing in flight: the faster address.
    assert_eq!(ports(&pool, 100), [0, 0, 100]);
    let held = pool.pick(None, None, now).expect("an address");
    assert_eq!(held.endpoint.address, fast.address);
    // Two requests at the faster address take less time.
    assert_eq!(ports(&pool, 100), [0, 0, 100]);
    drop(held);
    pool.note_response(&fast, false, 50_000, now);
    assert_eq!(ports(&pool, 100), [0, 100, 0], "a peak counts at once");
    for _ in 0..30 {
        pool.note_response(&fast, false, 1_000, now);
    }
    assert_eq!(ports(&pool, 100), [0, 0, 100], "and decays");
}

#[test]
fn retry_uses_another_address_and_is_bounded() {
    let pool = pool(LoadBalancing::RoundRobin, 2);
    let first = pick(&pool, None);
    let other = pick(&pool, Some(&first.endpoint));
    assert_ne!(first.endpoint.address, other.endpoint.address);
    assert!(pool.may_retry(None, 1, 1, true) && !pool.may_retry(None, 2, 1, true));
    let sent = (0..100).filter(|_| pool.may_retry(None, 1, 1, true));
    let sent = sent.count();
    assert!(sent < 10, "the initial balance is exhausted: {sent}");
    // Not sent.
    assert!(pool.may_retry(None, 1, 1, false) && !pool.may_retry(None, 2, 1, false));
}
