//! The gateway's configuration: plain data, read from TOML with every mistake told at once.
//!
//! Nothing here does anything: [`crate::App::build`] makes the gateway out of it. A mistake has
//! file, line and key; unknown keys are refused; a route without a policy does not load.

mod assumed_pools;
mod cors;
mod limits;
mod listen;
mod network;
mod pattern;
mod policy;
mod route;
pub(crate) mod route_test;
mod schema;
mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postern_common::config::Env;
use postern_common::decode::{Field, Object, Value};
use postern_common::identity::IdentityConfig;
use postern_common::token::Issuer;
use url::Url;

pub use assumed_pools::{ASSUMED_POOLS, assumed_settings};
pub use cors::{CorsPolicy, OriginPattern};
pub use limits::{ClientLimits, RateLimit, RateLimitKey};
pub use listen::{
    AccessLogConfig, AccessLogSink, ClientAddressDetail, ListenerConfig, ListenerTlsConfig,
};
pub use network::IpNetwork;
pub use pattern::{HostPattern, MatchCondition, MethodSet, PathPattern, PathSegment, RoutePattern};
pub use policy::{CallerRules, RoutePolicy, ServiceRule, UserRule};
pub use route::{PathRewrite, Route, RouteTarget};
pub use route_test::{RouteTest, TestToken};
pub use schema::SCHEMA;
pub use upstream::{
    HealthCheckConfig, HealthProbe, LoadBalancing, OutlierDetection, UpstreamAddress,
    UpstreamConfig, UpstreamTlsConfig,
};

/// Everything that `conf/proxy.toml` says.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients come in; at least one.
    pub listen: Vec<ListenerConfig>,
    /// Where operators ask; `None` for nowhere.
    pub admin: Option<SocketAddr>,
    /// `[admin] hosts`: names by which operators may call it, besides loopback names and, where it
    /// does not listen on a loopback address, IP addresses; default none. Any other `Host` is
    /// refused.
    pub admin_hosts: Vec<String>,
    /// Worker threads; `None` for one per core. Read at start only.
    pub workers: Option<usize>,
    /// Pools whose tokens are trusted.
    pub identity: IdentityConfig,
    /// How tokens are remembered.
    pub tokens: TokenConfig,
    /// What clients may ask of the gateway.
    pub limits: ClientLimits,
    /// How the process ends.
    pub stop: ShutdownConfig,
    /// `[handover] socket`: the Unix socket over which a new process takes over; default none.
    pub handover: Option<PathBuf>,
    /// Where access events go.
    pub access_log: AccessLogConfig,
    /// Where spans go; default nowhere.
    pub traces: Option<TraceConfig>,
    /// The services behind the gateway.
    pub upstreams: Vec<UpstreamConfig>,
    /// The routes, in the order of the file.
    pub routes: Vec<Route>,
    /// Cross-origin rules for requests that no route takes.
    pub cors: Option<Arc<CorsPolicy>>,
    /// Requests whose outcome must be as written here before the configuration goes live.
    pub tests: Vec<RouteTest>,
}

/// `[tokens]`: how tokens are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// Bytes that verified tokens may take; default 40 MiB, some 100,000 tokens, which are not
    /// kept: who sent each one is.
    pub cache_bytes: usize,
    /// Folder where the last good keys of each issuer are kept across restarts; default none.
    pub jwks_dir: Option<PathBuf>,
}

/// `[traces]`: spans for OpenTelemetry.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceConfig {
    /// Where OTLP over HTTP in JSON is taken, such as `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: Url,
    /// The share of traces that begin here which are sampled; default 0.01. A trace that comes in
    /// sampled goes on so.
    pub sample: f64,
}

/// `[stop]`: how the process ends.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownConfig {
    /// How long readiness is red while requests are still accepted, so that a load balancer sees it
    /// first; default 0.
    pub notice: Duration,
    /// How long an idle HTTP/1.1 connection may still bring a request after that, whose answer says
    /// `Connection: close`; less than `drain`, or 0; default 1 s, but at most half of `drain`, so
    /// that a busy client is told rather than cut off (RFC 9112 section 9.6).
    pub linger: Duration,
    /// How long requests in flight may take, from the same moment on; default 30 s. The process
    /// ends as soon as no connection is left.
    pub drain: Duration,
}

impl Config {
    /// Reads the root of the file without running its tests.
    pub(crate) fn decode(root: &Object<'_>, env: &Env) -> Option<Self> {
        let listen = root.list("listen", |field| field.object(ListenerConfig::read));
        let none = |field: Field<'_>| {
            Some(matches!(field.value(), Value::Array(items) if items.is_empty()))
        };
        if root.optional("listen", none).unwrap_or(true) {
            root.fail("missing_field", "at least one [[listen]] is required");
        }
        let admin = root.section("admin", |admin| {
            let hosts = admin.or("hosts", Vec::new(), short_texts);
            Some((
                admin.required("address", |field| field.socket_addr())?,
                hosts,
            ))
        });
        let (admin, admin_hosts) = admin
            .map(|(address, hosts)| (Some(address), hosts))
            .unwrap_or_default();
        let workers = root.optional("workers", |field| field.integer(1..=256));
        let identity = IdentityConfig::read(root, env);
        let tokens = root
            .section("tokens", TokenConfig::read)
            .unwrap_or_default();
        let limits = root.section("limits", |section| ClientLimits::read(section, env));
        let limits = limits.unwrap_or_else(|| ClientLimits::from_env(env));
        let stop = root
            .section("stop", ShutdownConfig::read)
            .unwrap_or_default();
        let handover = root.section("handover", |section| {
            section.required("socket", |f| f.text(1..=100))
        });
        let access_log = root
            .section("access_log", AccessLogConfig::read)
            .unwrap_or_default();
        let traces = root.section("traces", TraceConfig::read);
        let upstreams = root.section("upstream", |section| {
            Some(section.entries(UpstreamConfig::read))
        });
        let upstreams = upstreams.unwrap_or_default();
        let cors = root.section("cors", CorsPolicy::read).map(Arc::new);
        let routes = route::read_all(root, &upstreams, &limits, cors.as_ref());
        let tests = root.list("test", |field| route_test::read(field, &routes, &upstreams));
        Some(Self {
            listen,
            admin,
            admin_hosts,
            workers,
            identity: identity?,
            tokens,
            limits,
            stop,
            handover: handover.map(PathBuf::from),
            access_log,
            traces,
            upstreams,
            cors: CorsPolicy::fallback(cors, &routes),
            routes,
            tests,
        })
    }
}

impl Config {
    /// Whose tokens are accepted. Of what they say is kept what the policies of these routes ask
    /// for, and those of `before`, under which requests may be that go on.
    #[must_use]
    pub fn issuers(&self, before: &[Route]) -> Vec<Issuer> {
        let routes = self.routes.iter().chain(before);
        let mut claims: Vec<&str> = routes.flat_map(|route| route.policy.claims()).collect();
        claims.sort_unstable();
        claims.dedup();
        let asked = |issuer: Issuer| Issuer {
            claims: claims.iter().map(|name| (*name).to_owned()).collect(),
            ..issuer
        };
        self.identity.issuers().into_iter().map(asked).collect()
    }

    /// Whether an upstream's certificate is checked with the authorities of the machine.
    pub(crate) fn needs_system_roots(&self) -> bool {
        self.upstreams
            .iter()
            .filter_map(|upstream| upstream.tls.as_ref())
            .any(|tls| tls.ca.is_none())
    }
}

impl TokenConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        Some(Self {
            cache_bytes: section.or("cache_bytes", default.cache_bytes, memory_size),
            jwks_dir: section
                .optional("jwks_dir", |field| field.text(1..=4096))
                .map(PathBuf::from),
        })
    }
}

impl Default for TokenConfig {
    fn default() -> Self {
        Self {
            cache_bytes: 40 << 20,
            jwks_dir: None,
        }
    }
}

impl TraceConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let sample = section.or("sample", 0.01, |field| match field.number()? {
            share if (0.0..=1.0).contains(&share) => Some(share),
            _ => field.fail("out_of_range", "must be 0 to 1"),
        });
        section
            .required("endpoint", |field| field.url())
            .map(|endpoint| Self { endpoint, sample })
    }
}

impl ShutdownConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        let drain = section.or("drain", default.drain, |field| field.duration());
        Some(Self {
            notice: section.or("notice", default.notice, |field| field.duration()),
            linger: section.or("linger", default.linger.min(drain / 2), |field| match field
                .duration()?
            {
                linger if linger.is_zero() || linger < drain => Some(linger),
                _ => field.fail("out_of_range", "must be less than drain, or 0"),
            }),
            drain,
        })
    }
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self {
            notice: Duration::ZERO,
            linger: Duration::from_secs(1),
            drain: Duration::from_secs(30),
        }
    }
}

/// A size that memory can hold.
fn memory_size(field: Field<'_>) -> Option<usize> {
    let bytes = field.bytes()?;
    usize::try_from(bytes)
        .ok()
        .or_else(|| field.fail("out_of_range", "is more than this machine can hold"))
}

/// A duration that is not zero: a timeout of zero would refuse everything, and none is never meant.
fn nonzero_duration(field: Field<'_>) -> Option<Duration> {
    match field.duration()? {
        Duration::ZERO => field.fail("out_of_range", "must be more than 0"),
        duration => Some(duration),
    }
}

/// A list that is not empty. One whose items are all wrong is not told to be empty as well.
fn non_empty<T>(field: Field<'_>, read: impl FnMut(Field<'_>) -> Option<T>) -> Option<Vec<T>> {
    if matches!(field.value(), Value::Array(items) if items.is_empty()) {
        return field.fail("invalid_length", "must not be empty");
    }
    field.array(read)
}

/// A list of short short_texts.
fn short_texts(field: Field<'_>) -> Option<Vec<String>> {
    field.array(|item| item.text(1..=256))
}
