//! Names, their answers and SRV records.

use hickory_resolver::proto::op::ResponseCode;
use tokio::net::TcpListener;

use super::*;
use crate::config::{HealthCheckConfig, HealthProbe};
use crate::upstream::discovery::Target;
use crate::upstream::name_resolver::{DnsAnswer, LookupError};

/// An answer of the resolver with these ports of 127.0.0.9.
pub(super) fn answer(ports: &[u16]) -> Result<DnsAnswer, LookupError> {
    let target = |port: &u16| Target {
        address: SocketAddr::from(([127, 0, 0, 9], *port)).into(),
        priority: 0,
        weight: 1,
    };
    Ok(DnsAnswer {
        targets: ports.iter().map(target).collect(),
        valid_for: Duration::from_secs(60),
        incomplete: None,
    })
}

/// Returns a pool with these names and these answers.
fn resolved(names: &[&str], answers: &[&[u16]]) -> UpstreamPool {
    let parse = |name: &&str| UpstreamAddress::parse(name, 1).expect("an address");
    let mut config = config(LoadBalancing::RoundRobin, &[1]);
    config.addresses = names.iter().map(parse).collect();
    let pool = pool_of(config);
    for (at, ports) in answers.iter().enumerate() {
        pool.discovery.record(at, answer(ports), Instant::now());
    }
    if !answers.is_empty() {
        update(&pool);
    }
    pool
}

/// Applies the result of a look-up.
pub(super) fn apply(pool: &UpstreamPool, at: usize, result: Result<DnsAnswer, LookupError>) {
    pool.discovery.record(at, result, Instant::now());
    update(pool);
}

fn update(pool: &UpstreamPool) {
    let done = pool.update_endpoints().now_or_never();
    done.expect("no name is due");
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
    assert!(
        Arc::ptr_eq(&before[1], &after[0]),
        "the others keep their state"
    );
}

#[test]
fn repeated_address_counts_once() {
    let mut config = config(LoadBalancing::RoundRobin, &[1, 3]);
    config.addresses.push(config.addresses[0].clone());
    assert_eq!(ports(&pool_of(config), 100), [0, 25, 75]);
}

/// Returns a pool of SRV records: priority, weight and port.
fn services(algorithm: LoadBalancing, records: &[(u16, u32, u16)]) -> UpstreamPool {
    let mut config = config(algorithm, &[1]);
    config.addresses =
        vec![UpstreamAddress::parse("srv://_http._tcp.a.internal", 1).expect("an address")];
    let pool = pool_of(config);
    apply_services(&pool, records);
    pool
}

fn apply_services(pool: &UpstreamPool, records: &[(u16, u32, u16)]) {
    let target = |(priority, weight, port): &(u16, u32, u16)| Target {
        address: SocketAddr::from(([127, 0, 0, 1], *port)).into(),
        priority: *priority,
        weight: *weight,
    };
    let mut services = answer(&[]).expect("an answer");
    services.targets = records.iter().map(target).collect();
    apply(pool, 0, Ok(services));
}

#[test]
fn lowest_priority_that_is_available_is_used() {
    for algorithm in ALGORITHMS {
        let name = algorithm.name();
        let pool = services(algorithm, &[(10, 1, 1), (10, 1, 2), (20, 1, 3)]);
        let count = ports(&pool, 100);
        assert_eq!((count[1] + count[2], count[3]), (100, 0), "{name}");
        eject(&pool, 0);
        let count = ports(&pool, 100);
        assert_eq!(count[2], 100, "{name}: one of the priority is available");
        eject(&pool, 1);
        assert_eq!(ports(&pool, 10)[3], 10, "{name}: none is");
        eject(&pool, 2);
        assert!(
            ports(&pool, 10)[3] < 10,
            "{name}: panic mode uses the lowest"
        );
    }
}

#[test]
fn changed_weight_keeps_the_state() {
    let pool = services(LoadBalancing::RoundRobin, &[(10, 1, 1), (10, 1, 2)]);
    let before = pool.endpoints();
    apply_services(&pool, &[(10, 1, 1), (10, 3, 2)]);
    assert!(Arc::ptr_eq(&before[1], &pool.endpoints()[1]));
    assert_eq!(ports(&pool, 100), [0, 25, 75]);
    apply_services(&pool, &[(20, 1, 1), (10, 3, 2)]);
    assert_eq!(ports(&pool, 100), [0, 0, 100], "the priority has changed");
}

#[tokio::test]
async fn unavailable_service_has_no_address() {
    let pool = services(LoadBalancing::RoundRobin, &[(10, 1, 1)]);
    apply_services(&pool, &[]);
    assert_eq!(
        pool.pick(b"", None, Instant::now()).err(),
        Some(NoEndpoint::Unavailable)
    );
}

#[tokio::test]
async fn unresolved_name_keeps_its_addresses() {
    let pool = resolved(&["a.internal:1", "b.internal:1"], &[&[11, 12], &[21]]);
    let states = || {
        let names = pool.names().into_iter();
        names
            .map(|name| (name.state, name.error.is_some()))
            .collect::<Vec<_>>()
    };
    let failed = || Err(LookupError::Failed("timeout".to_owned()));
    assert_eq!(current_ports(&pool), [11, 12, 21]);
    assert_eq!(states(), [(NameResolution::Current, false); 2]);
    pool.endpoints()[0].note_success(777, &OutlierDetection::default(), 0);
    apply(&pool, 0, failed());
    apply(&pool, 1, answer(&[22]));
    assert_eq!(
        current_ports(&pool),
        [11, 12, 22],
        "unresolved entries keep their addresses"
    );
    assert_eq!(
        states(),
        [
            (NameResolution::Stale, true),
            (NameResolution::Current, false)
        ]
    );
    apply(
        &pool,
        0,
        Err(LookupError::NoRecords(ResponseCode::NXDomain)),
    );
    assert_eq!(
        current_ports(&pool),
        [11, 12, 22],
        "an empty result counts as none"
    );
    let mut partial = answer(&[12]).expect("an answer");
    partial.incomplete = failed().err();
    apply(&pool, 0, Ok(partial.clone()));
    assert_eq!(current_ports(&pool), [11, 12, 22], "nor does a part of one");
    assert!(
        pool.endpoints()
            .iter()
            .any(|endpoint| endpoint.status(0).latency_us == 777),
        "the state is kept"
    );
    apply(&pool, 0, answer(&[13]));
    assert_eq!(current_ports(&pool), [13, 22]);
    assert_eq!(states(), [(NameResolution::Current, false); 2]);

    let pool = resolved(&["a.internal:1"], &[]);
    apply(&pool, 0, Ok(partial));
    assert_eq!(
        current_ports(&pool),
        [12],
        "without an earlier answer, a part is used"
    );
}

#[tokio::test]
async fn names_are_resolved_in_the_background() {
    let address = |text: &str| UpstreamAddress::parse(text, 1).expect("an address");
    let mut config = config(LoadBalancing::RoundRobin, &[1]);
    config.addresses = vec![
        address("localhost:80"),
        address("name.invalid:80"),
        address("127.0.0.7:80"),
    ];
    let pool = Arc::new(pool_of(config));
    assert_eq!(pool.endpoints().len(), 1, "IP addresses need no look-up");
    let stop = CancellationToken::new();
    let keeper = tokio::spawn(Arc::clone(&pool).run_discovery(stop.clone()));
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
            .any(|endpoint| endpoint.config_index == 0)
    );
    stop.cancel();
    keeper.await.expect("ends after the stop");
}

#[tokio::test]
async fn new_pool_starts_with_the_last_answers() {
    let mut config = config(LoadBalancing::RoundRobin, &[1]);
    config.addresses = vec![UpstreamAddress::parse("localhost:80", 7).expect("an address")];
    let resolver = Arc::new(NameResolver::new(DnsConfig::default()));
    resolver.look_up(&config.addresses[0]).await.expect("found");
    config.addresses[0].weight = 3;
    let metrics = GatewayMetrics::new().expect("metrics");
    let pool = UpstreamPool::new(config, &resolver, &metrics).expect("a pool");
    assert!(!pool.endpoints().is_empty());
    assert!(
        pool.endpoints()
            .iter()
            .all(|endpoint| endpoint.weight() == 3)
    );
}

#[tokio::test]
async fn address_recovers_after_a_change_of_its_weight() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let mut config = config(LoadBalancing::RoundRobin, &[1]);
    config.addresses =
        vec![UpstreamAddress::parse("srv://_http._tcp.a.internal", 1).expect("an address")];
    config.health = Some(HealthCheckConfig {
        probe: HealthProbe::Tcp,
        interval: Duration::from_secs(3600),
        timeout: Duration::from_secs(5),
        failures: 1,
        successes: 1,
    });
    let pool = Arc::new(pool_of(config));
    apply_services(&pool, &[(10, 1, address.port())]);
    let checks = tokio::spawn(Arc::clone(&pool).run_health_checks(CancellationToken::new()));
    let is_healthy = || pool.endpoints()[0].status(0).healthy;
    let failed = async {
        while is_healthy() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed)
        .await
        .expect("the first check fails");
    apply_services(&pool, &[(10, 3, address.port())]);
    assert!(!is_healthy());
    let _listener = TcpListener::bind(address).await.expect("binds again");
    pool.health.run_health_check(true).await;
    assert!(is_healthy());
    checks.abort();
}
