//! The addresses of an upstream: IP addresses of the configuration, and names that are looked up
//! again when their answers expire.
//!
//! [`SharedDiscovery`] is the [`ServiceDiscovery`] of a pool. Every backend that it returns carries its
//! [`Endpoint`], so that health checks and selections of Pingora reach the state of the address.
//! While a look-up fails, the last good answer stays in use.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::{Backend, Extensions};
use serde::Serialize;

use crate::config::{AddressKind, UpstreamAddress};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::name_resolver::{DnsAnswer, LookupError, NameResolver};
use crate::upstream::peer::PeerBuilder;

/// Time after which a failed look-up is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time until changes of the system's files are noticed.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// An address to which requests can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// Addresses with a greater number are used only if none with a lesser one is available.
    pub(super) priority: u16,
    pub(super) weight: u32,
}

/// The service discovery of an upstream.
#[derive(Debug)]
pub(super) struct Discovery {
    upstream: String,
    resolver: Arc<NameResolver>,
    peers: Arc<PeerBuilder>,
    /// Whether the first call, which looks no names up, was made.
    has_started: AtomicBool,
    /// Whether the last call has left an address out that has moved.
    has_moved: AtomicBool,
    state: Mutex<DiscoveryState>,
}

/// The discovery, as Pingora owns it.
pub(super) struct SharedDiscovery(pub(super) Arc<Discovery>);

#[derive(Debug)]
struct DiscoveryState {
    sources: Vec<Source>,
    /// The state of the system's files at the last look-up.
    generation: u64,
    /// The endpoints of the last call.
    endpoints: HashMap<SocketAddr, Arc<Endpoint>>,
}

/// An entry of `addresses`.
#[derive(Debug)]
struct Source {
    address: UpstreamAddress,
    /// The addresses of the last good answer.
    targets: Vec<Target>,
    /// The state of the look-ups of a name; `None` for an IP address or a Unix socket.
    name: Option<NameState>,
}

/// The state of the look-ups of a name.
#[derive(Debug)]
struct NameState {
    /// Time of the next look-up.
    due_at: Instant,
    /// Time of the last good answer.
    answered_at: Option<Instant>,
    /// The first of the failures since the last good answer, and the latest reason.
    failure: Option<(Instant, LookupError)>,
}

/// The state of a name in `/upstreams/names`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NameStatus {
    pub(crate) name: String,
    pub(crate) state: NameResolution,
    /// The addresses of the last good answer.
    pub(crate) addresses: Vec<String>,
    /// Seconds since the last good answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_s: Option<u64>,
    /// Why the last look-up failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The result of the look-ups of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NameResolution {
    /// The first look-up has not ended.
    Pending,
    /// The answer is valid.
    Current,
    /// The last good answer is used, because look-ups fail.
    Stale,
    /// There has been no answer.
    Unresolved,
}

// === impl Discovery ===

impl Discovery {
    pub(super) fn new(
        upstream: &str,
        addresses: &[UpstreamAddress],
        resolver: Arc<NameResolver>,
        peers: Arc<PeerBuilder>,
    ) -> Self {
        let now = Instant::now();
        let sources = addresses.iter().map(|address| {
            let last = resolver.last_answer(address);
            Source::new(address, last, now)
        });
        let sources = sources.collect();
        Self {
            upstream: upstream.to_owned(),
            resolver,
            peers,
            has_started: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            state: Mutex::new(DiscoveryState {
                sources,
                generation: 0,
                endpoints: HashMap::new(),
            }),
        }
    }

    /// Returns whether an address is a name.
    pub(super) fn has_names(&self) -> bool {
        self.state()
            .sources
            .iter()
            .any(|source| source.name.is_some())
    }

    /// Returns the time until the next look-up is due.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let state = self.state();
        let due = state
            .sources
            .iter()
            .filter_map(|source| source.name.as_ref().map(|name| name.due_at));
        let next = due.min().map_or(MAX_WAIT, |due| {
            due.checked_duration_since(now).unwrap_or_default()
        });
        next.min(MAX_WAIT)
    }

    /// Returns the states of the names.
    pub(super) fn names(&self, now: Instant) -> Vec<NameStatus> {
        let state = self.state();
        state
            .sources
            .iter()
            .filter_map(|source| source.status(now))
            .collect()
    }

    /// Returns whether the last call has left an address out, which the next one returns.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Looks the names up whose answers have expired.
    async fn look_up_due(&self, now: Instant) {
        let due: Vec<(usize, UpstreamAddress)> = {
            let mut state = self.state();
            let generation = self.resolver.generation(now);
            let all = std::mem::replace(&mut state.generation, generation) != generation;
            let sources = state.sources.iter().enumerate();
            let is_due = |name: &NameState| all || name.due_at <= now;
            sources
                .filter(|(_, source)| source.name.as_ref().is_some_and(is_due))
                .map(|(at, source)| (at, source.address.clone()))
                .collect()
        };
        let look_ups = due.into_iter().map(async |(at, address)| {
            let answer = self.resolver.look_up(&address).await;
            self.record(at, answer, Instant::now());
        });
        join_all(look_ups).await;
    }

    /// Records the result of a look-up.
    pub(super) fn record(&self, at: usize, answer: Result<DnsAnswer, LookupError>, now: Instant) {
        let mut state = self.state();
        let Some(source) = state.sources.get_mut(at) else {
            return;
        };
        let has_addresses = !source.targets.is_empty();
        let Some(name) = &mut source.name else {
            return;
        };
        let failure = match answer {
            Ok(answer) => {
                name.due_at = now + answer.valid_for;
                // Without an earlier answer, a part of one is better than none.
                if answer.incomplete.is_none() || !has_addresses {
                    source.targets = answer.targets;
                    name.answered_at = Some(now);
                }
                answer.incomplete
            }
            Err(error) => Some(error),
        };
        let (upstream, address) = (&self.upstream, &source.address);
        let Some(error) = failure else {
            if let Some((since, _)) = name.failure.take() {
                let outage_s = now.saturating_duration_since(since).as_secs();
                tracing::info!(%upstream, name = %address, outage_s, "upstream name resolved again");
            }
            return;
        };
        name.due_at = now + RETRY_INTERVAL;
        match &mut name.failure {
            Some((_, last)) => {
                tracing::debug!(%upstream, name = %address, %error, "upstream name lookup failed");
                *last = error;
            }
            None => {
                tracing::warn!(%upstream, name = %address, %error, "upstream name not resolved, keeping last addresses");
                name.failure = Some((now, error));
            }
        }
    }

    /// Returns the backends of the last answers, with endpoints that keep the state of unchanged
    /// addresses. An address that has moved to another entry of the configuration, of which its
    /// peer depends, is left out once: a set that differs in nothing else would count as unchanged.
    fn backends(&self) -> BTreeSet<Backend> {
        let mut state = self.state();
        let DiscoveryState {
            sources, endpoints, ..
        } = &mut *state;
        let (mut current, mut has_moved) = (HashMap::new(), false);
        let targets = sources.iter().enumerate().flat_map(|(at, source)| {
            let targets = source.targets.iter();
            targets.map(move |target| (at, target))
        });
        for (at, target) in targets {
            if current.contains_key(&target.address) {
                continue;
            }
            match endpoints.get(&target.address) {
                Some(known) if known.config_index == at => {
                    known.set_share(target.priority, target.weight);
                    current.insert(target.address.clone(), Some(Arc::clone(known)));
                }
                Some(_) => {
                    has_moved = true;
                    current.insert(target.address.clone(), None);
                }
                None => {
                    let endpoint = Endpoint::new(target.address.clone(), at, &self.peers);
                    endpoint.set_share(target.priority, target.weight);
                    current.insert(target.address.clone(), Some(Arc::new(endpoint)));
                }
            }
        }
        *endpoints = current
            .into_iter()
            .filter_map(|(address, endpoint)| endpoint.map(|endpoint| (address, endpoint)))
            .collect();
        self.has_moved.store(has_moved, Ordering::Relaxed);
        endpoints.values().map(backend).collect()
    }

    fn state(&self) -> MutexGuard<'_, DiscoveryState> {
        self.state.lock()
    }
}

#[async_trait]
impl ServiceDiscovery for SharedDiscovery {
    /// Returns the current backends, after looking expired names up. The first call looks no names
    /// up and does not wait.
    async fn discover(&self) -> pingora_core::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        if self.0.has_started.swap(true, Ordering::Relaxed) {
            self.0.look_up_due(Instant::now()).await;
        }
        Ok((self.0.backends(), HashMap::new()))
    }
}

// === impl NameResolution ===

impl NameResolution {
    pub(crate) const ALL: [Self; 4] = [Self::Pending, Self::Current, Self::Stale, Self::Unresolved];

    /// Returns the label of metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Current => "current",
            Self::Stale => "stale",
            Self::Unresolved => "unresolved",
        }
    }
}

// === impl Source ===

impl Source {
    /// `last` are the addresses that a name had before.
    fn new(address: &UpstreamAddress, last: Vec<Target>, now: Instant) -> Self {
        let host = address.host.as_str();
        let fixed = match address.kind {
            AddressKind::Host => host.parse().ok().map(|ip| inet(ip, address.port)),
            AddressKind::Unix => UnixAddress::from_pathname(host).ok().map(SocketAddr::Unix),
            AddressKind::Srv => None,
        };
        let is_name = fixed.is_none();
        let target = fixed.map(|address_of| Target {
            address: address_of,
            priority: 0,
            weight: address.weight,
        });
        Self {
            address: address.clone(),
            targets: target.map_or(last, |target| vec![target]),
            name: is_name.then_some(NameState {
                due_at: now,
                answered_at: None,
                failure: None,
            }),
        }
    }

    fn status(&self, now: Instant) -> Option<NameStatus> {
        let name = self.name.as_ref()?;
        let state = match (&name.failure, name.answered_at) {
            (None, None) => NameResolution::Pending,
            (None, Some(_)) => NameResolution::Current,
            (Some(_), Some(_)) => NameResolution::Stale,
            (Some(_), None) => NameResolution::Unresolved,
        };
        let age = name
            .answered_at
            .map(|answered_at| now.saturating_duration_since(answered_at));
        Some(NameStatus {
            name: self.address.to_string(),
            state,
            addresses: self
                .targets
                .iter()
                .map(|target| target.address.to_string())
                .collect(),
            age_s: age.map(|age| age.as_secs()),
            error: name.failure.as_ref().map(|(_, error)| error.to_string()),
        })
    }
}

/// Returns the address of a port.
pub(super) fn inet(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::Inet((ip, port).into())
}

/// Returns the backend of an endpoint, which carries it.
fn backend(endpoint: &Arc<Endpoint>) -> Backend {
    let mut ext = Extensions::new();
    ext.insert(Arc::clone(endpoint));
    Backend {
        addr: endpoint.address.clone(),
        weight: endpoint.weight() as usize,
        ext,
    }
}
