//! Consistent hashing and random choice.

use super::*;

fn mix(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number << 7)
}

/// Returns the port that each of 4,000 keys is sent to.
fn ports_of_keys(pool: &UpstreamPool) -> Vec<u16> {
    let port = |key: u64| {
        let permit = pool.pick(&mix(key).to_le_bytes(), None, Instant::now());
        permit.expect("an address").endpoint.port()
    };
    (0..4000).map(port).collect()
}

#[test]
fn consistent_hash_moves_only_keys_of_lost_address() {
    let all = pool(CONSISTENT, &[1, 1, 1, 1, 1]);
    let before = ports_of_keys(&all);
    let ejected = {
        eject(&all, 0);
        ports_of_keys(&all)
    };
    let mut fewer = config(CONSISTENT, &[1, 1, 1, 1, 1]);
    fewer.addresses.remove(0);
    let removed = ports_of_keys(&pool_of(fewer));
    let moved = before.iter().filter(|port| **port == 1).count();
    assert!(
        (600..1000).contains(&moved),
        "one of five has a fifth of the keys: {moved}"
    );
    for ((before, ejected), removed) in before.iter().zip(ejected).zip(removed) {
        assert_eq!(ejected, removed, "an ejected address counts as removed");
        assert_ne!(removed, 1);
        assert!(*before == 1 || *before == removed);
    }
}

#[test]
fn consistent_hash_follows_the_weights() {
    let pool = pool(CONSISTENT, &[100, 100, 200]);
    let share = ports_of_keys(&pool)
        .iter()
        .filter(|port| **port == 3)
        .count();
    assert!((1800..2200).contains(&share), "half of the weight: {share}");
}

#[test]
fn address_at_capacity_passes_its_keys_on() {
    let pool = pool(CONSISTENT, &[1, 1, 1]);
    let pick = || pool.pick(b"key", None, Instant::now()).expect("an address");
    let held: Vec<_> = (0..6).map(|_| pick()).collect();
    let ports: Vec<u16> = held.iter().map(|permit| permit.endpoint.port()).collect();
    assert_eq!(
        (ports[0], ports[2], ports[4]),
        (ports[1], ports[3], ports[5])
    );
    drop(held);
    assert_eq!(pick().endpoint.port(), ports[0]);
}

#[test]
fn keys_of_a_full_address_are_distributed() {
    let pool = pool(CONSISTENT, &[1, 1, 1]);
    let pick = |key: u64| {
        let permit = pool.pick(&mix(key).to_le_bytes(), None, Instant::now());
        permit.expect("an address")
    };
    let port = |key: u64| pick(key).endpoint.port();
    let keys: Vec<u64> = (0..200).filter(|key| port(*key) == 1).collect();
    let held = [pick(keys[0]), pick(keys[1])];
    let passed_on: Vec<u16> = keys.iter().map(|key| port(*key)).collect();
    assert!(
        passed_on.contains(&2) && passed_on.contains(&3) && !passed_on.contains(&1),
        "{passed_on:?}"
    );
    drop(held);
}

#[test]
fn excluded_address_leaves_the_other_weights_unchanged() {
    let pool = pool(LoadBalancing::RoundRobin, &[10, 20, 10]);
    eject(&pool, 0);
    assert_eq!(ports(&pool, 300), [0, 0, 200, 100]);
    let pool = self::pool(LoadBalancing::Random, &[10, 20, 10]);
    eject(&pool, 0);
    let count = ports(&pool, 6000);
    // The standard deviation is 37.
    assert!((3800..4200).contains(&count[2]), "{count:?}");
}

#[test]
fn random_choice_follows_the_weights() {
    let count = ports(&pool(LoadBalancing::Random, &[1, 2, 0]), 6000);
    assert_eq!(count[3], 0);
    assert!((1800..2200).contains(&count[1]), "{count:?}");
}

#[test]
fn round_robin_interleaves_addresses() {
    let pool = pool(LoadBalancing::RoundRobin, &[1000, 333]);
    let count = ports(&pool, 40);
    assert!((29..=31).contains(&count[1]), "{count:?}");
    let equal = self::pool(LoadBalancing::RoundRobin, &[7, 7, 7, 7]);
    for _ in 0..5 {
        assert_eq!(ports(&equal, 4), [0, 1, 1, 1, 1]);
    }
}
