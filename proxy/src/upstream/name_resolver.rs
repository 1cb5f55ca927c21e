//! DNS look-ups, with the time for which an answer is valid.
//!
//! As with the resolver of the C library, a name that `/etc/hosts` contains is not looked up in
//! DNS, and both files are read again when they are modified. Other sources of `nsswitch.conf` are
//! not used.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::config::{ResolverOpts, ServerOrderingStrategy};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use parking_lot::{Mutex, MutexGuard};

use crate::config::{DnsConfig, UpstreamAddress};
use crate::upstream::discovery::{Target, inet};
use crate::upstream::srv::{self, SrvRecord};

/// Repetitions of a query that failed.
const QUERY_RETRIES: usize = 2;

/// Interval in which the system's files are checked for modifications.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

const HOSTS_FILE: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The resolver of the gateway.
pub(crate) struct NameResolver {
    config: DnsConfig,
    system: Mutex<SystemState>,
    /// The last answers, for pools that a reload creates.
    last_answers: Mutex<HashMap<String, Vec<Target>>>,
}

#[derive(Default)]
struct SystemState {
    current: Option<SystemResolver>,
    /// Incremented when a file of the system was modified.
    generation: u64,
}

/// A resolver built from the system's files.
struct SystemResolver {
    resolver: TokioResolver,
    hosts: Arc<Hosts>,
    modified: [Option<SystemTime>; 2],
    checked_at: Instant,
}

/// The addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    pub(super) targets: Vec<Target>,
    /// Time until the next look-up.
    pub(super) valid_for: Duration,
    /// The failure of a part of the look-up: `targets` lacks addresses of some hosts.
    pub(super) incomplete: Option<LookupError>,
}

/// The reason for which a name has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// The name does not exist (NXDOMAIN), or has no records of the type.
    NoRecords(ResponseCode),
    /// No name server answered, or none could.
    Failed(String),
}

// === impl NameResolver ===

impl NameResolver {
    pub(crate) fn new(config: DnsConfig) -> Self {
        Self {
            config,
            system: Mutex::default(),
            last_answers: Mutex::default(),
        }
    }

    /// Returns the settings of the resolver.
    pub(crate) fn config(&self) -> &DnsConfig {
        &self.config
    }

    /// Looks an address of the configuration up, which is a name.
    pub(super) async fn look_up(
        &self,
        address: &UpstreamAddress,
    ) -> Result<DnsAnswer, LookupError> {
        let (resolver, hosts) = self.current();
        let (mut answer, ttl) = if address.is_srv() {
            look_up_service(&resolver, &hosts, &address.host).await?
        } else {
            let (ips, ttl) = look_up_host(&resolver, &hosts, &address.host).await?;
            let target = |ip| Target {
                address: inet(ip, address.port),
                priority: 0,
                weight: address.weight,
            };
            (DnsAnswer::of(ips.into_iter().map(target).collect()), ttl)
        };
        answer.valid_for = ttl.clamp(self.config.min_ttl, self.config.max_ttl);
        if answer.incomplete.is_none() {
            let mut last = self.last_answers();
            last.insert(address.to_string(), answer.targets.clone());
        }
        Ok(answer)
    }

    /// Returns the addresses of the last good answer, which may have expired.
    pub(super) fn last_answer(&self, address: &UpstreamAddress) -> Vec<Target> {
        let last = self.last_answers().get(&address.to_string()).cloned();
        let mut targets = last.unwrap_or_default();
        if !address.is_srv() {
            targets
                .iter_mut()
                .for_each(|target| target.weight = address.weight);
        }
        targets
    }

    fn last_answers(&self) -> MutexGuard<'_, HashMap<String, Vec<Target>>> {
        self.last_answers.lock()
    }

    /// Returns a number that changes when a file of the system was modified, so that answers are
    /// outdated. Checks at most once in [`FILE_CHECK_INTERVAL`].
    pub(super) fn generation(&self, now: Instant) -> u64 {
        let mut system = self.system.lock();
        if let Some(current) = &mut system.current
            && now.saturating_duration_since(current.checked_at) >= FILE_CHECK_INTERVAL
        {
            current.checked_at = now;
            if current.modified != modified() {
                system.current = None;
                system.generation += 1;
            }
        }
        system.generation
    }

    /// Returns the resolver, which is built by the first look-up.
    fn current(&self) -> (TokioResolver, Arc<Hosts>) {
        let mut system = self.system.lock();
        let current = system.current.get_or_insert_with(|| SystemResolver {
            modified: modified(),
            resolver: build(&self.config),
            hosts: Arc::new(Hosts::from_system().unwrap_or_default()),
            checked_at: Instant::now(),
        });
        (current.resolver.clone(), Arc::clone(&current.hosts))
    }
}

impl fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameResolver")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

// === impl DnsAnswer ===

impl DnsAnswer {
    fn of(targets: Vec<Target>) -> Self {
        Self {
            targets,
            valid_for: Duration::ZERO,
            incomplete: None,
        }
    }
}

// === impl LookupError ===

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecords(ResponseCode::NXDomain) => f.write_str("the name does not exist"),
            Self::NoRecords(_) => f.write_str("the name has no records of the required type"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl From<NetError> for LookupError {
    fn from(error: NetError) -> Self {
        let NetError::Dns(DnsError::NoRecordsFound(none)) = &error else {
            return Self::Failed(error.to_string());
        };
        let code = none.response_code;
        if matches!(code, ResponseCode::NXDomain | ResponseCode::NoError) {
            Self::NoRecords(code)
        } else {
            Self::Failed(format!("error response: {code}"))
        }
    }
}

fn modified() -> [Option<SystemTime>; 2] {
    [HOSTS_FILE, RESOLV_CONF].map(|path| {
        let file = std::fs::metadata(Path::new(path));
        file.and_then(|file| file.modified()).ok()
    })
}

/// Builds a resolver without a cache: pools look names up when their answers expire.
fn build(config: &DnsConfig) -> TokioResolver {
    let server = |ip: IpAddr, port: u16| {
        let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        connections
            .iter_mut()
            .for_each(|connection| connection.port = port);
        NameServerConfig::new(ip, true, connections.into())
    };
    let (servers, mut options) = match &config.servers {
        Some(servers) => {
            let servers = servers
                .iter()
                .map(|address| server(address.ip(), address.port()));
            (
                ResolverConfig::from_parts(None, Vec::new(), servers.collect()),
                ResolverOpts::default(),
            )
        }
        // Without the file, the C library asks the server of this machine.
        None => system_conf::read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, file = RESOLV_CONF, "name server configuration unusable, using localhost");
            let local = server(IpAddr::from([127, 0, 0, 1]), 53);
            (
                ResolverConfig::from_parts(None, Vec::new(), vec![local]),
                ResolverOpts::default(),
            )
        }),
    };
    options.timeout = config.timeout;
    options.attempts = QUERY_RETRIES;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    let mut builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder
        .build()
        .expect("fails only if TLS or a trust anchor is configured")
}

/// Returns the addresses of a host and their time to live.
async fn look_up_host(
    resolver: &TokioResolver,
    hosts: &Hosts,
    host: &str,
) -> Result<(Vec<IpAddr>, Duration), LookupError> {
    let known = hosts_addresses(hosts, host);
    if !known.is_empty() {
        return Ok((known, Duration::MAX));
    }
    let lookup = Lookup::from(resolver.lookup_ip(host).await?);
    let ips = lookup.answers().iter();
    let ips: Vec<_> = ips.filter_map(|record| record.data.ip_addr()).collect();
    if ips.is_empty() {
        return Err(LookupError::NoRecords(ResponseCode::NoError));
    }
    Ok((ips, time_to_live(&lookup)))
}

/// Returns the addresses of a host in `/etc/hosts`.
fn hosts_addresses(hosts: &Hosts, host: &str) -> Vec<IpAddr> {
    let Ok(name) = Name::from_utf8(host) else {
        return Vec::new();
    };
    [RecordType::A, RecordType::AAAA]
        .into_iter()
        .filter_map(|kind| hosts.lookup_static_host(&Query::query(name.to_lowercase(), kind)))
        .flat_map(|lookup| {
            let ips = lookup.answers().iter().map(|record| record.data.ip_addr());
            ips.collect::<Vec<_>>()
        })
        .flatten()
        .collect()
}

/// Returns the addresses of a service and their time to live. A single record with the target `.`
/// means that the service is not available, which is an answer without addresses.
async fn look_up_service(
    resolver: &TokioResolver,
    hosts: &Hosts,
    service: &str,
) -> Result<(DnsAnswer, Duration), LookupError> {
    let lookup = resolver.srv_lookup(service).await?;
    let mut ttl = time_to_live(&lookup);
    let records: Vec<_> = lookup
        .answers()
        .iter()
        .filter_map(|record| {
            let RData::SRV(srv) = &record.data else {
                return None;
            };
            Some(srv)
        })
        .collect();
    if !records.is_empty() && records.iter().all(|srv| srv.target.is_root()) {
        return Ok((DnsAnswer::of(Vec::new()), ttl));
    }
    let found = records.into_iter().map(async |srv| {
        let found = look_up_host(resolver, hosts, &srv.target.to_utf8()).await;
        (srv, found)
    });
    let (mut known, mut failure) = (Vec::new(), None);
    for (srv, found) in join_all(found).await {
        match found {
            Ok((hosts, host_ttl)) => {
                ttl = ttl.min(host_ttl);
                known.push(SrvRecord {
                    priority: srv.priority,
                    weight: srv.weight,
                    port: srv.port,
                    hosts,
                });
            }
            // A host that does not exist has no addresses, which is an answer.
            Err(LookupError::NoRecords(_)) => {
                tracing::debug!(srv_name = service, host = %srv.target, "host of a SRV record has no address");
            }
            Err(error) => failure = Some(error),
        }
    }
    if known.is_empty() {
        return Err(failure.unwrap_or(LookupError::NoRecords(ResponseCode::NoError)));
    }
    let answer = DnsAnswer {
        incomplete: failure,
        ..DnsAnswer::of(srv::targets(&known))
    };
    Ok((answer, ttl))
}

/// Returns the shortest time to live of the records, aliases included.
fn time_to_live(lookup: &Lookup) -> Duration {
    let shortest = lookup.answers().iter().map(|record| record.ttl).min();
    Duration::from_secs(shortest.unwrap_or(0).into())
}
