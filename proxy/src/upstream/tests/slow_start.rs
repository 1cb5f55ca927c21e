//! Slow start of new and recovered addresses, and draining of removed ones.

use postern_http::upstream::UpstreamConnection;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::discovery::{answer, apply};
use super::*;
use crate::config::{HealthCheckConfig, HealthProbe};

const SLOW_START: Duration = Duration::from_secs(100);

/// Returns a pool with one resolved name and these ports.
fn resolved(load_balancing: LoadBalancing, ports: &[u16]) -> UpstreamPool {
    let mut config = config(load_balancing, &[1]);
    config.addresses = vec![UpstreamAddress::parse("a.internal:1", 1).expect("an address")];
    config.slow_start = Some(SLOW_START);
    let pool = pool_of(config);
    apply(&pool, 0, answer(ports));
    pool
}

/// Number of requests of a sample: the standard deviation of a share is below 1.5 %.
const REQUESTS: usize = 10_000;

/// Returns how many of [`REQUESTS`] at this time are sent to the port.
fn share(pool: &UpstreamPool, port: u16, at: Instant) -> usize {
    let pick = |_: &usize| {
        let permit = pool.pick(b"", None, at).expect("an address");
        permit.endpoint.port() == port
    };
    (0..REQUESTS).filter(pick).count()
}

const WITH_SLOW_START: [LoadBalancing; 3] = [
    LoadBalancing::RoundRobin,
    LoadBalancing::Random,
    LoadBalancing::LeastLoaded,
];

#[test]
fn new_address_reaches_its_share_during_slow_start() {
    for algorithm in WITH_SLOW_START {
        let name = algorithm.name();
        let pool = resolved(algorithm, &[11]);
        apply(&pool, 0, answer(&[11, 12]));
        let began = Instant::now();
        let full = share(&pool, 12, began + SLOW_START);
        assert!((4_500..=5_500).contains(&full), "{name}: {full}");
        for percent in [0, 10, 50, 80] {
            let part = share(&pool, 12, began + SLOW_START * percent / 100) * 100 / full;
            let factor = percent.max(10) as usize;
            // Round robin multiplies the weight of one of two addresses, the others its share.
            let want = match name {
                "round_robin" => 200 * factor / (100 + factor),
                _ => factor,
            };
            let is_near = part.abs_diff(want) <= 9;
            assert!(
                is_near,
                "{name}: {part} % of the share after {percent} %, not {want}"
            );
        }
        let status = |at: Instant| {
            pool.endpoints()[1]
                .status(pool.ms_at(at))
                .slow_start_percent
        };
        assert_eq!(status(began), Some(10));
        assert_eq!(status(began + SLOW_START), None);
        assert_eq!(
            pool.endpoints()[0].status(pool.now_ms()).slow_start_percent,
            None
        );
    }
}

#[tokio::test]
async fn first_addresses_have_no_slow_start() {
    let pool = resolved(LoadBalancing::RoundRobin, &[11, 12]);
    assert_eq!(share(&pool, 12, Instant::now()), REQUESTS / 2);
    // All addresses are replaced.
    apply(&pool, 0, answer(&[21, 22]));
    assert_eq!(share(&pool, 22, Instant::now()), REQUESTS / 2);
}

#[test]
fn address_in_slow_start_is_used_without_alternative() {
    for algorithm in WITH_SLOW_START {
        let pool = resolved(algorithm, &[11]);
        apply(&pool, 0, answer(&[11, 12]));
        let now = Instant::now();
        let retry = |_| {
            pool.pick(b"", Some(&pool.endpoints()[0]), now)
                .expect("the other")
        };
        assert!(
            (0..50)
                .map(retry)
                .all(|permit| permit.endpoint.port() == 12)
        );
        // The other address is at capacity (two requests).
        let held: Vec<_> = (0..2)
            .map(|_| {
                let new = Arc::clone(&pool.endpoints()[1]);
                pool.pick(b"", Some(&new), now).expect("the old address")
            })
            .collect();
        for _ in 0..50 {
            assert!(pool.pick(b"", None, now).is_ok());
        }
        drop(held);
        pool.endpoints()[0].healthy.store(false, Ordering::Relaxed);
        let retry = pool
            .pick(b"", Some(&pool.endpoints()[0]), now)
            .expect("the other");
        assert_eq!(retry.endpoint.port(), 12);
    }
}

#[tokio::test]
async fn recovered_address_has_a_slow_start() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let mut config = config(LoadBalancing::RoundRobin, &[1]);
    config.addresses = vec![UpstreamAddress::parse(&address.to_string(), 1).expect("one")];
    config.slow_start = Some(SLOW_START);
    config.health = Some(HealthCheckConfig {
        probe: HealthProbe::Tcp,
        interval: Duration::from_millis(5),
        timeout: Duration::from_secs(1),
        failures: 1,
        successes: 1,
    });
    let pool = Arc::new(pool_of(config));
    let stop = CancellationToken::new();
    tokio::spawn(Arc::clone(&pool).run_health_checks(stop.clone()));
    let status = || pool.endpoints()[0].status(pool.now_ms());
    let until = async |is_healthy: bool| {
        while status().healthy != is_healthy {
            tokio::task::yield_now().await;
        }
    };
    drop(listener);
    let waiting = async {
        until(false).await;
        assert_eq!(status().slow_start_percent, None);
        let _again = TcpListener::bind(address).await.expect("binds");
        until(true).await;
        assert_eq!(status().slow_start_percent, Some(10));
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    waited.expect("checks in time");
    stop.cancel();
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
    let pool = resolved(LoadBalancing::RoundRobin, &[11, 12]);
    let in_flight = pool.pick(b"", None, Instant::now()).expect("an address");
    let removed = Arc::clone(&in_flight.endpoint);
    let mut peer = removed.peer.clone();
    peer._address = address.into();
    let connect = || {
        let within = Duration::from_secs(5);
        UpstreamConnection::connect(&peer, &removed.pins, within, None)
    };
    let (idle, used) = (
        connect().await.expect("one"),
        connect().await.expect("another"),
    );
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
    assert_eq!(share(&pool, other, Instant::now()), REQUESTS);
}
