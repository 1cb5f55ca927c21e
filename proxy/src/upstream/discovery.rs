//! The addresses of an upstream: IP addresses of the configuration, and names that are looked up
//! periodically. While a look-up fails, the last good answer stays in use.

use std::net::IpAddr;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use pingora::protocols::l4::socket::SocketAddr;
use postern_core::backoff::{Backoff, Delays};
use postern_core::log_outage_state;
use serde::Serialize;
use strum::IntoStaticStr;

use crate::config::{AddressKind, UpstreamAddress};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::name_resolver::NameResolver;
use crate::upstream::peer::PeerBuilder;

/// Time between two look-ups of a name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// Delays after which a failed look-up is repeated.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_secs(1), LOOKUP_INTERVAL);

/// The entries of `addresses` of an upstream and what they lead to.
#[derive(Debug)]
pub(super) struct Discovery {
    upstream: String,
    resolver: Arc<NameResolver>,
    peers: Arc<PeerBuilder>,
    sources: Mutex<Vec<Source>>,
}

/// An entry of `addresses`.
#[derive(Debug)]
struct Source {
    address: UpstreamAddress,
    /// The addresses of the last good answer.
    targets: Vec<SocketAddr>,
    /// The state of the look-ups of a name; `None` for an IP address or a Unix socket.
    name: Option<NameState>,
}

#[derive(Debug)]
struct NameState {
    /// Time of the next look-up.
    due_at: Instant,
    /// Time of the last good answer.
    answered_at: Option<Instant>,
    /// The first of the failures since the last good answer, and the latest reason.
    failure: Option<(Instant, String)>,
    delays: Delays,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum NameResolution {
    /// The first look-up has not ended.
    Pending,
    Current,
    /// The last good answer is used, because look-ups fail.
    Stale,
    Unresolved,
}

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
        let sources = Mutex::new(sources.collect());
        Self {
            upstream: upstream.to_owned(),
            resolver,
            peers,
            sources,
        }
    }

    pub(super) fn has_names(&self) -> bool {
        self.sources.lock().iter().any(|it| it.name.is_some())
    }

    /// Returns the time until the next look-up is due.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let sources = self.sources.lock();
        let names = sources.iter().filter_map(|it| it.name.as_ref());
        let due = names.map(|name| name.due_at).min();
        due.map_or(Duration::MAX, |due| due.saturating_duration_since(now))
    }

    pub(super) fn names(&self, now: Instant) -> Vec<NameStatus> {
        let sources = self.sources.lock();
        sources.iter().filter_map(|it| it.status(now)).collect()
    }

    pub(super) async fn look_up_due(&self, now: Instant) {
        let is_due = |source: &Source| source.name.as_ref().is_some_and(|it| it.due_at <= now);
        let due: Vec<(usize, UpstreamAddress)> = {
            let sources = self.sources.lock();
            let due = sources.iter().enumerate().filter(|(_, it)| is_due(it));
            due.map(|(at, it)| (at, it.address.clone())).collect()
        };
        let look_ups = due.into_iter().map(async |(at, address)| {
            let answer = self.resolver.look_up(&address).await;
            self.record(at, answer, Instant::now());
        });
        join_all(look_ups).await;
    }

    pub(super) fn record(&self, at: usize, answer: Result<Vec<SocketAddr>, String>, now: Instant) {
        let mut sources = self.sources.lock();
        let Some(source) = sources.get_mut(at) else {
            return;
        };
        let Some(name) = &mut source.name else {
            return;
        };
        let (upstream, address) = (&self.upstream, &source.address);
        let error = match answer {
            Ok(targets) => {
                name.due_at = now + LOOKUP_INTERVAL;
                name.answered_at = Some(now);
                name.delays.reset();
                source.targets = targets;
                if let Some((since, _)) = name.failure.take() {
                    let outage_s = now.saturating_duration_since(since).as_secs();
                    tracing::info!(%upstream, name = %address, outage_s, "upstream name resolved again");
                }
                return;
            }
            Err(error) => error,
        };
        name.due_at = now + name.delays.next_delay();
        match &mut name.failure {
            Some((_, last)) => {
                tracing::debug!(%upstream, name = %address, %error, "upstream name lookup failed");
                *last = error;
            }
            None => {
                log_outage_state!(format!("upstream {upstream}"), %upstream, name = %address, %error, "upstream name not resolved, keeping last addresses");
                name.failure = Some((now, error));
            }
        }
    }

    /// Returns the endpoints of the last answers: those of `before` for addresses of the same entries
    /// of the configuration, of which their peers depend. A repeated address counts once.
    pub(super) fn endpoints(&self, before: &[Arc<Endpoint>]) -> Vec<Arc<Endpoint>> {
        let mut current: Vec<Arc<Endpoint>> = Vec::new();
        for (at, source) in self.sources.lock().iter().enumerate() {
            for address in &source.targets {
                if current.iter().any(|it| it.address == *address) {
                    continue;
                }
                let is_same = |it: &&Arc<Endpoint>| it.config_index == at && it.address == *address;
                let known = before.iter().find(is_same).cloned();
                let new = || Arc::new(Endpoint::new(address.clone(), at, &self.peers));
                current.push(known.unwrap_or_else(new));
            }
        }
        current
    }
}

impl NameResolution {
    pub(crate) const ALL: [Self; 4] = [Self::Pending, Self::Current, Self::Stale, Self::Unresolved];
}

impl Source {
    /// `last` are the addresses that a name had before.
    fn new(address: &UpstreamAddress, last: Vec<SocketAddr>, now: Instant) -> Self {
        let host = address.host.as_str();
        let fixed = match address.kind {
            AddressKind::Host => host.parse().ok().map(|ip| inet(ip, address.port)),
            AddressKind::Unix => UnixAddress::from_pathname(host).ok().map(SocketAddr::Unix),
        };
        let is_name = fixed.is_none();
        Self {
            address: address.clone(),
            targets: fixed.map_or(last, |fixed| vec![fixed]),
            name: is_name.then_some(NameState {
                due_at: now,
                answered_at: None,
                failure: None,
                delays: RETRY_DELAYS.delays(),
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
            addresses: self.targets.iter().map(ToString::to_string).collect(),
            age_s: age.map(|age| age.as_secs()),
            error: name.failure.as_ref().map(|(_, error)| error.clone()),
        })
    }
}

pub(super) fn inet(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::Inet((ip, port).into())
}
