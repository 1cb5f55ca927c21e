use std::time::{Duration, Instant};

use super::*;
use crate::config::{OutlierDetection, UpstreamAddress};

fn pool(balance: LoadBalancing, weights: &[u32]) -> UpstreamPool {
    let addresses = weights.iter().zip(1..).map(|(weight, port)| {
        UpstreamAddress::parse(&format!("127.0.0.1:{port}"), *weight).expect("an address")
    });
    let config = UpstreamConfig {
        name: "test".to_owned(),
        addresses: addresses.collect(),
        balance,
        connect_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        write_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(1),
        in_flight: 2,
        retries: 1,
        retry_budget: 20,
        health: None,
        outlier: OutlierDetection::default(),
        tls: None,
        http2: false,
    };
    UpstreamPool::new(config, &GatewayMetrics::new().expect("metrics")).expect("a pool")
}

fn ports(pool: &UpstreamPool, picks: usize) -> Vec<usize> {
    let mut count = vec![0; pool.endpoints().len() + 1];
    for turn in 0..picks {
        let permit = pool
            .pick(turn as u64, None, Instant::now())
            .expect("an address");
        count[usize::from(permit.endpoint.address.port())] += 1;
    }
    count
}

#[test]
fn round_robin_follows_the_weights() {
    assert_eq!(
        ports(&pool(LoadBalancing::RoundRobin, &[1, 2, 0]), 300),
        [0, 100, 200, 0]
    );
}

#[test]
fn less_loaded_address_is_chosen() {
    let pool = pool(LoadBalancing::LeastLoaded, &[1, 1]);
    let first = pool.pick(0, None, Instant::now()).expect("an address");
    for _ in 0..20 {
        let next = pool.pick(0, None, Instant::now()).expect("an address");
        assert_ne!(
            next.endpoint.address, first.endpoint.address,
            "the other address has nothing in flight"
        );
    }
}

#[test]
fn requests_in_flight_are_limited() {
    let pool = pool(LoadBalancing::LeastLoaded, &[1, 1]);
    let held: Vec<InFlightPermit> = (0..4)
        .map(|_| pool.pick(0, None, Instant::now()).expect("a permit"))
        .collect();
    assert_eq!(
        pool.pick(0, None, Instant::now()).err(),
        Some(NoEndpoint::AtCapacity)
    );
    drop(held);
    assert!(pool.pick(0, None, Instant::now()).is_ok());
}

#[test]
fn failing_address_is_ejected_unless_panic() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1, 1]);
    let all = pool.endpoints();
    (0..5).for_each(|_| pool.note_failure(&all[0], Instant::now()));
    let count = ports(&pool, 100);
    assert_eq!((count[1], count[2]), (0, 50));
    (0..5).for_each(|_| pool.note_failure(&all[1], Instant::now()));
    assert!(
        ports(&pool, 99).iter().skip(1).all(|count| *count == 33),
        "two of three ejected: panic mode"
    );
}

fn eject(pool: &UpstreamPool, at: usize) -> Arc<Endpoint> {
    let endpoint = Arc::clone(&pool.endpoints()[at]);
    (0..5).for_each(|_| pool.note_failure(&endpoint, Instant::now()));
    assert!(endpoint.status(pool.now_ms()).ejected);
    endpoint
}

const BALANCES: [LoadBalancing; 3] = [
    LoadBalancing::RoundRobin,
    LoadBalancing::LeastLoaded,
    LoadBalancing::ClientHash,
];

#[test]
fn retry_uses_ejected_address_as_last_resort() {
    for balance in BALANCES {
        let pool = pool(balance, &[1, 1]);
        let ejected = eject(&pool, 0);
        assert_eq!(ports(&pool, 50), [0, 0, 50], "one of two ejected: no panic");
        let failed = pool.pick(0, None, Instant::now()).expect("an address");
        let retry = pool
            .pick(0, Some(&failed.endpoint), Instant::now())
            .expect("the ejected address");
        assert_eq!(retry.endpoint.address, ejected.address);
    }
}

#[test]
fn ejected_addresses_are_used_without_alternative() {
    for (balance, weights) in BALANCES.into_iter().zip([[1, 1], [1, 0], [1, 0]]) {
        let mut pool = pool(balance, &weights);
        pool.config.outlier.panic_percent = 100;
        let only = eject(&pool, 0);
        eject(&pool, 1);
        assert!(pool.pick(0, None, Instant::now()).is_ok(), "{weights:?}");
        if weights[1] == 0 {
            let retry = pool
                .pick(0, Some(&only), Instant::now())
                .expect("the only weighted address");
            assert_eq!(retry.endpoint.address, only.address);
        }
    }
}

#[test]
fn ejected_address_precedes_unhealthy_one() {
    let mut pool = pool(LoadBalancing::RoundRobin, &[1, 1, 1]);
    pool.config.outlier.panic_percent = 100;
    let all = pool.endpoints();
    all.iter()
        .take(2)
        .for_each(|endpoint| endpoint.healthy.store(false, Ordering::Relaxed));
    eject(&pool, 2);
    assert_eq!(ports(&pool, 10), [0, 0, 0, 10]);
    let retry = pool
        .pick(0, Some(&all[2]), Instant::now())
        .expect("an unhealthy address");
    assert_ne!(retry.endpoint.address, all[2].address);
}

#[test]
fn retry_in_panic_prefers_available_address() {
    for balance in BALANCES {
        let pool = pool(balance, &[1, 1, 1]);
        let failed = [eject(&pool, 0), eject(&pool, 1)];
        for turn in 0..20 {
            let retry = pool
                .pick(turn, Some(&failed[0]), Instant::now())
                .expect("an address");
            assert_eq!(retry.endpoint.address.port(), 3, "{balance:?}");
        }
    }
}

#[test]
fn zero_weight_address_does_not_count_for_panic() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1, 0, 0]);
    pool.endpoints()
        .iter()
        .skip(2)
        .for_each(|endpoint| endpoint.healthy.store(false, Ordering::Relaxed));
    eject(&pool, 0);
    assert_eq!(ports(&pool, 10), [0, 0, 10, 0, 0]);
}

#[test]
fn ejection_ends_early_after_successes() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1]);
    let back = Arc::clone(&pool.endpoints()[0]);
    let at = |millis: u64| pool.created_at + Duration::from_millis(millis);
    let is_out = || back.status(2_000).ejected;
    (0..5).for_each(|_| pool.note_failure(&back, at(0)));
    (0..4).for_each(|_| pool.note_response(&back, 200, 1_000, at(1_000)));
    pool.note_failure(&back, at(1_000));
    (0..4).for_each(|_| pool.note_response(&back, 200, 1_000, at(1_000)));
    assert!(is_out(), "as many consecutive successes as failures");
    pool.note_response(&back, 200, 1_000, at(1_000));
    assert!(!is_out());
}

#[test]
fn ejection_time_resets_after_recovery() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1]);
    let bad = Arc::clone(&pool.endpoints()[0]);
    let at = |millis: u64| pool.created_at + Duration::from_millis(millis);
    let fail = |millis| (0..5).for_each(|_| pool.note_failure(&bad, at(millis)));
    fail(0);
    assert!(
        bad.status(9_999).ejected && !bad.status(10_000).ejected,
        "10 s"
    );
    pool.note_response(&bad, 200, 1_000, at(11_000));
    fail(12_000);
    assert!(
        bad.status(21_999).ejected && !bad.status(22_000).ejected,
        "10 s again after recovery"
    );
    // Requests that started before the ejection.
    (0..9).for_each(|_| pool.note_response(&bad, 200, 1_000_000, at(13_000)));
    fail(23_000);
    assert!(
        bad.status(42_999).ejected && !bad.status(43_000).ejected,
        "20 s: second consecutive ejection"
    );
    assert_eq!(pool.ejections.get(), 3);
}

#[test]
fn slow_address_is_chosen_less() {
    let pool = pool(LoadBalancing::LeastLoaded, &[1, 1]);
    let (slow, fast) = (
        Arc::clone(&pool.endpoints()[0]),
        Arc::clone(&pool.endpoints()[1]),
    );
    let now = Instant::now();
    pool.note_response(&slow, 200, 5_000, now);
    pool.note_response(&fast, 200, 2_000, now);
    assert_eq!(
        ports(&pool, 100),
        [0, 0, 100],
        "nothing in flight: the faster address"
    );
    let held = pool.pick(0, None, now).expect("an address");
    assert_eq!(held.endpoint.address, fast.address);
    assert_eq!(
        ports(&pool, 100),
        [0, 0, 100],
        "two requests at the faster address take less time"
    );
    drop(held);
    pool.note_response(&fast, 200, 50_000, now);
    assert_eq!(ports(&pool, 100), [0, 100, 0], "a peak counts at once");
    for _ in 0..30 {
        pool.note_response(&fast, 200, 1_000, now);
    }
    assert_eq!(ports(&pool, 100), [0, 0, 100], "and decays");
}

#[test]
fn retry_uses_another_address_and_is_bounded() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1]);
    let first = pool.pick(0, None, Instant::now()).expect("an address");
    let other = pool
        .pick(0, Some(&first.endpoint), Instant::now())
        .expect("another address");
    assert_ne!(first.endpoint.address, other.endpoint.address);
    assert!(pool.may_retry(1, 1, true) && !pool.may_retry(2, 1, true));
    let sent = (0..100).filter(|_| pool.may_retry(1, 1, true)).count();
    assert!(sent < 10, "the initial balance is exhausted: {sent}");
    assert!(
        pool.may_retry(1, 1, false) && !pool.may_retry(2, 1, false),
        "not sent"
    );
}

#[test]
fn unchanged_addresses_keep_their_state() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1]);
    let before = pool.endpoints();
    pool.set_addresses(vec![
        (0, before[0].address),
        (1, "127.0.0.9:2".parse().expect("an address")),
    ]);
    let after = pool.endpoints();
    assert!(Arc::ptr_eq(&before[0], &after[0]) && !Arc::ptr_eq(&before[1], &after[1]));
}

#[test]
fn client_hash_moves_only_clients_of_lost_address() {
    let pool = pool(LoadBalancing::ClientHash, &[1, 1, 2]);
    let clients: Vec<u64> = (0..4000_u64).map(|client| mix(client + 1)).collect();
    let of = |client: &u64| {
        pool.pick(*client, None, Instant::now())
            .expect("an address")
            .endpoint
            .address
            .port()
    };
    let before: Vec<u16> = clients.iter().map(of).collect();
    let share = before.iter().filter(|port| **port == 3).count();
    assert!((1800..2200).contains(&share), "half of the weight: {share}");
    let all = pool.endpoints();
    (0..5).for_each(|_| pool.note_failure(&all[0], Instant::now()));
    for (client, before) in clients.iter().zip(before) {
        assert!(before == 1 || of(client) == before);
        assert_ne!(of(client), 1);
    }
}

/// Addresses as returned by a resolver.
fn found(ports: &[u16]) -> Option<Vec<SocketAddr>> {
    Some(
        ports
            .iter()
            .map(|port| SocketAddr::from(([127, 0, 0, 9], *port)))
            .collect(),
    )
}

#[test]
fn unresolved_name_keeps_its_addresses() {
    let pool = pool(LoadBalancing::RoundRobin, &[1, 1]);
    let now = || {
        let mut ports: Vec<u16> = pool
            .endpoints()
            .iter()
            .map(|endpoint| endpoint.address.port())
            .collect();
        ports.sort_unstable();
        ports
    };
    assert!(pool.apply_resolved(vec![found(&[11, 12]), found(&[21])]));
    assert_eq!(now(), [11, 12, 21]);
    pool.endpoints()[0].note_success(777, &OutlierDetection::default(), 0);
    assert!(
        !pool.apply_resolved(vec![None, found(&[22])]),
        "not all names were resolved"
    );
    assert_eq!(
        now(),
        [11, 12, 22],
        "unresolved entries keep their addresses"
    );
    assert!(
        !pool.apply_resolved(vec![found(&[]), found(&[22])]),
        "an empty result counts as none"
    );
    assert_eq!(now(), [11, 12, 22]);
    assert!(
        pool.endpoints()
            .iter()
            .any(|endpoint| endpoint.status(0).latency_us == 777),
        "the state is kept"
    );
    assert!(pool.apply_resolved(vec![found(&[13]), found(&[22])]));
    assert_eq!(now(), [13, 22]);
}

#[tokio::test]
async fn names_are_resolved_in_the_background() {
    let address = |text: &str| UpstreamAddress::parse(text, 1).expect("an address");
    let mut config = pool(LoadBalancing::RoundRobin, &[1]).config.clone();
    config.addresses = vec![
        address("localhost:80"),
        address("name.invalid:80"),
        address("127.0.0.7:80"),
    ];
    let pool = Arc::new(
        UpstreamPool::new(config, &GatewayMetrics::new().expect("metrics")).expect("a pool"),
    );
    assert_eq!(pool.endpoints().len(), 1, "IP addresses need no look-up");
    let stop = tokio_util::sync::CancellationToken::new();
    let keeper = tokio::spawn(Arc::clone(&pool).run_resolver(stop.clone()));
    let resolved = async {
        while pool.endpoints().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), resolved)
        .await
        .expect("in time");
    assert!(
        pool.endpoints()
            .iter()
            .any(|endpoint| endpoint.address.ip().is_loopback() && endpoint.config_index == 0)
    );
    stop.cancel();
    keeper.await.expect("ends after the stop");
}
