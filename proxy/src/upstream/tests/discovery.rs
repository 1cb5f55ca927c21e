//! Names and their answers, drained addresses, and health checks.

use postern_http::upstream::UpstreamConnection;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::HealthCheckConfig;

/// An answer of the resolver with these ports of 127.0.0.9.
fn answer(ports: &[u16]) -> Result<Answer, String> {
    let target = |port: &u16| SocketAddr::from(([127, 0, 0, 9], *port)).into();
    Ok(ports.iter().map(target).collect())
}

type Answer = Vec<pingora::protocols::l4::socket::SocketAddr>;

fn resolved(names: &[&str], answers: &[&[u16]]) -> UpstreamPool {
    let parse = |name: &&str| UpstreamAddress::parse(name).expect("an address");
    let mut config = config(LoadBalancing::RoundRobin, 1);
    config.addresses = names.iter().map(parse).collect();
    let pool = pool_of(config);
    for (at, ports) in answers.iter().enumerate() {
        pool.discovery.record(at, answer(ports), Instant::now());
    }
    pool.update_endpoints();
    pool
}

/// Applies the result of a look-up.
fn apply(pool: &UpstreamPool, at: usize, result: Result<Answer, String>) {
    pool.discovery.record(at, result, Instant::now());
    pool.update_endpoints();
}

fn current_ports(pool: &UpstreamPool) -> Vec<u16> {
    let endpoints = pool.endpoints();
    let mut ports: Vec<u16> = endpoints.iter().map(|endpoint| endpoint.port()).collect();
    ports.sort_unstable();
    ports
}

#[tokio::test]
async fn unchanged_addresses_keep_their_state() {
    let pool = resolved(&["a.internal:1", "b.internal:1"], &[&[11], &[21]]);
    let before = pool.endpoints();
    apply(&pool, 1, answer(&[22]));
    let after = pool.endpoints();
    assert!(Arc::ptr_eq(&before[0], &after[0]) && !Arc::ptr_eq(&before[1], &after[1]));
}

#[tokio::test]
async fn address_of_another_name_gets_a_new_endpoint() {
    let pool = resolved(&["a.internal:1", "b.internal:1"], &[&[11, 12], &[21]]);
    let before = pool.endpoints();
    pool.discovery.record(0, answer(&[12]), Instant::now());
    apply(&pool, 1, answer(&[11]));
    let after = pool.endpoints();
    assert_eq!(current_ports(&pool), [11, 12]);
    let moved = after.iter().find(|endpoint| endpoint.port() == 11);
    assert_eq!(moved.expect("the address").config_index, 1);
    // The others keep their state.
    assert!(Arc::ptr_eq(&before[1], &after[0]));
}

#[test]
fn repeated_address_counts_once() {
    let mut config = config(LoadBalancing::RoundRobin, 2);
    config.addresses.push(config.addresses[0].clone());
    assert_eq!(ports(&pool_of(config), 100), [0, 50, 50]);
}

#[tokio::test]
async fn unresolved_name_keeps_its_addresses() {
    let pool = resolved(&["a.internal:1", "b.internal:1"], &[&[11, 12], &[21]]);
    let states = || {
        let names = pool.names().into_iter();
        let states = names.map(|name| (name.state, name.error.is_some()));
        states.collect::<Vec<_>>()
    };
    let failed = || Err("timeout".to_owned());
    assert_eq!(current_ports(&pool), [11, 12, 21]);
    assert_eq!(states(), [(NameResolution::Current, false); 2]);
    pool.endpoints()[0].note_success(777, 0);
    apply(&pool, 0, failed());
    apply(&pool, 1, answer(&[22]));
    // Unresolved entries keep their addresses.
    assert_eq!(current_ports(&pool), [11, 12, 22]);
    let current = (NameResolution::Current, false);
    assert_eq!(states(), [(NameResolution::Stale, true), current]);
    let endpoints = pool.endpoints();
    let mut latencies = endpoints.iter().map(|it| it.status(0).latency_us);
    assert!(latencies.any(|it| it == 777), "the state is kept");
    apply(&pool, 0, answer(&[13]));
    assert_eq!(current_ports(&pool), [13, 22]);
    assert_eq!(states(), [(NameResolution::Current, false); 2]);
}

#[tokio::test]
async fn new_pool_starts_with_the_last_answers() {
    let mut config = config(LoadBalancing::RoundRobin, 1);
    config.addresses = vec![UpstreamAddress::parse("localhost:80").expect("an address")];
    let resolver = Arc::<NameResolver>::default();
    resolver.look_up(&config.addresses[0]).await.expect("found");
    let metrics = GatewayMetrics::new().expect("metrics");
    let pool = UpstreamPool::new(config, &resolver, &metrics).expect("a pool");
    assert!(!pool.endpoints().is_empty());
}

#[tokio::test]
async fn health_changes_after_some_checks_alike() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let mut config = config(LoadBalancing::RoundRobin, 1);
    config.addresses = vec![UpstreamAddress::parse(&address.to_string()).expect("one")];
    let health = HealthCheckConfig {
        path: None,
        interval: Duration::from_secs(3600),
        timeout: Duration::from_secs(5),
        failures: 2,
        successes: 3,
    };
    let pool = Arc::new(pool_of(config));
    let backends = pool.checked_backends(&health);
    let checked = async || {
        pool.check_health(&backends).await;
        pool.endpoints()[0].status(0).healthy
    };
    assert!(checked().await);
    drop(listener);
    assert!(checked().await && !checked().await && !checked().await);
    let listener = TcpListener::bind(address).await.expect("binds again");
    assert!(!checked().await && !checked().await);
    drop(listener);
    assert!(!checked().await, "the successes begin anew");
    let _listener = TcpListener::bind(address).await.expect("binds again");
    assert!(!checked().await && !checked().await && checked().await);
}

/// Checks that the gateway closes a connection.
async fn assert_closed(peer: &mut TcpStream) {
    let mut space = [0; 1];
    let read = tokio::time::timeout(Duration::from_secs(10), peer.read(&mut space)).await;
    assert_eq!(read.expect("the end in time").expect("no reset"), 0);
}

#[tokio::test]
async fn removed_address_is_drained() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let pool = resolved(&["a.internal:1"], &[&[11, 12]]);
    let in_flight = pool.pick(None, None, Instant::now()).expect("an address");
    let removed = Arc::clone(&in_flight.endpoint);
    let mut peer = removed.peer.clone();
    peer._address = address.into();
    let connect = || UpstreamConnection::connect(&peer, &removed.pins, Duration::from_secs(5));
    let idle = connect().await.expect("one");
    let used = connect().await.expect("another");
    let (mut idle_peer, _) = listener.accept().await.expect("accepts");
    let (mut used_peer, _) = listener.accept().await.expect("accepts");
    removed.idle.put(idle, Instant::now());
    let other = match removed.port() {
        11 => 12,
        _ => 11,
    };
    apply(&pool, 0, answer(&[other]));
    assert_closed(&mut idle_peer).await;
    // The request in flight ends later, and its connection is not pooled.
    assert_eq!(removed.in_flight(), 1);
    removed.idle.evict(Duration::from_secs(5));
    removed.idle.put(used, Instant::now());
    assert_closed(&mut used_peer).await;
    drop(in_flight);
    assert_eq!(removed.in_flight(), 0);
    assert_eq!(ports_of(&pool, 10), [other; 10]);
}

/// Returns the ports that requests are sent to.
fn ports_of(pool: &UpstreamPool, picks: usize) -> Vec<u16> {
    let pick = |_| pool.pick(None, None, Instant::now()).expect("an address");
    (0..picks).map(|at| pick(at).endpoint.port()).collect()
}
