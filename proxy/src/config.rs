//! The configuration of the gateway, read from TOML.
//!
//! - **Enters:** a parsed TOML document and the environment.
//! - **Leaves:** [`Config`], plain data without behaviour; or all mistakes at once, each with file,
//!   line and key. Unknown keys are rejected, and a route without a policy does not load.
//! - **May depend on:** [`postern_http::message`] for syntax checks and [`crate::rate_limiter`] for rates.

mod access;
mod acme;
mod answer;
mod api_keys;
pub(crate) mod compression;
mod cors;
mod external_authorization;
mod header_changes;
mod limits;
mod listen;
mod mirror;
mod pattern;
mod policy;
mod redirect_target;
mod route;
mod route_settings;
pub(crate) mod route_test;
mod schema;
mod template;
mod tls;
mod upstream;
mod upstream_address;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postern_core::config::{AdminListener, Env, read_admin_with};
use postern_core::decode::{Field, Object};
use postern_core::identity::TrustConfig;
use postern_core::token::Issuer;
use postern_service::log::Log;
use postern_service::trace::TracingConfig;

pub use access::AccessList;
pub use acme::AcmeConfig;
pub use answer::{FixedResponse, RedirectAnswer, RouteAnswer};
pub use api_keys::ApiKeyConfig;
pub use compression::CompressionConfig;
pub use cors::{CorsPolicy, OriginPattern};
pub use external_authorization::ExternalAuthorization;
pub use header_changes::HeaderChanges;
pub use limits::{ClientLimits, RateLimit, RateLimitKey};
pub(crate) use listen::DEFAULT_HTTPS_PORT;
pub use listen::{AccessLogConfig, AccessLogSink, ClientAddressDetail, ListenerConfig};
pub use mirror::MirrorConfig;
pub use pattern::{HostPattern, MatchCondition, MethodSet, PathPattern, PathSegment, RoutePattern};
pub(crate) use policy::check_callers;
pub use policy::{CallerRules, OwnerRule, RoutePolicy, ServiceRule, UserRule};
pub use redirect_target::RedirectTarget;
pub use route::{PathRewrite, Route, RouteTarget};
pub use route_settings::RouteSettings;
pub use route_test::{RouteTest, TestToken};
pub use schema::SCHEMA;
pub use template::{Template, TemplatePart, Variable};
pub use tls::{
    CertificateConfig, CertificateName, CertificatePrincipal, CertificateSource, ClientAuthConfig,
    ListenerTlsConfig,
};
pub use upstream::{
    HealthCheckConfig, HealthProbe, LoadBalancing, OutlierDetection, UpstreamConfig,
    UpstreamTlsConfig,
};
pub use upstream_address::{AddressKind, UpstreamAddress};

/// The contents of `proxy.toml`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listening addresses for clients; at least one.
    pub listen: Vec<ListenerConfig>,
    /// The ACME server of listeners with `tls.acme`; default none.
    pub acme: Option<AcmeConfig>,
    /// The admin listener; default none.
    pub admin: Option<AdminListener>,
    /// `[admin] history`: the folder of earlier configurations; default `<file>.history`.
    pub config_history: Option<PathBuf>,
    /// The diagnostic log on standard error.
    pub log: Log,
    /// Worker threads; `None` for one per core. Read at startup only.
    pub workers: Option<usize>,
    /// The user pools and further issuers whose tokens are trusted.
    pub identity: TrustConfig,
    /// The token cache.
    pub tokens: TokenConfig,
    /// The API keys of services; default none.
    pub api_keys: Option<ApiKeyConfig>,
    /// Limits on clients.
    pub limits: ClientLimits,
    /// Graceful shutdown.
    pub stop: ShutdownConfig,
    /// `[handover] socket`: the Unix socket for hot restarts; default none.
    pub handover: Option<PathBuf>,
    /// The access log.
    pub access_log: AccessLogConfig,
    /// Trace export; default none.
    pub tracing: Option<TracingConfig>,
    /// The upstreams.
    pub upstreams: Vec<UpstreamConfig>,
    /// The routes, in the order of the file.
    pub routes: Vec<Route>,
    /// The CORS policy for requests that match no route: that of `[defaults]`, or else that of the first
    /// route with one.
    pub cors: Option<Arc<CorsPolicy>>,
    /// The changes of responses to requests that match no route: those of `[defaults]`.
    pub response_headers: Option<Arc<HeaderChanges>>,
    /// Requests whose decision must be as specified before the configuration is activated.
    pub tests: Vec<RouteTest>,
}

/// `[tokens]`: the token cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// Memory for results of token verification in bytes; default 40 MiB, about 100,000 tokens. The
    /// identity is cached under a digest of the token, not the token itself.
    pub cache_bytes: usize,
    /// Directory in which the last valid keys of each issuer are stored across restarts; default
    /// none.
    pub jwks_dir: Option<PathBuf>,
}

/// `[stop]`: graceful shutdown.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownConfig {
    /// Time for which the process reports not ready but still accepts requests, so that load
    /// balancers stop sending first; default 0.
    pub notice: Duration,
    /// Time for which an idle HTTP/1.1 connection may still send a request after `notice`. Its
    /// response carries `Connection: close`. Less than `drain`, or 0; default 1 s, but at most half
    /// of `drain`. A busy client is thus not disconnected without notice (RFC 9112 section 9.6).
    pub linger: Duration,
    /// Maximum time for requests in flight, from the same moment; default 30 s. The process exits
    /// as soon as no connection is open.
    pub drain: Duration,
}

impl Config {
    /// Decodes the root of the document, without running the route tests. Returns `None`, with the
    /// mistakes recorded, if it is invalid.
    pub fn decode(root: &Object<'_>, env: &Env) -> Option<Self> {
        let listen =
            root.non_empty_list("listen", "at least one [[listen]] is required", |field| {
                field.object(ListenerConfig::read)
            });
        let acme = acme::read(root, &listen);
        let (admin, config_history) = read_admin(root, env);
        let log = Log::read(root, env);
        let workers = root.optional("workers", |field| field.integer(1..=256));
        let identity = TrustConfig::read(root, env);
        let tokens = root
            .section("tokens", TokenConfig::read)
            .unwrap_or_default();
        let api_keys = root.section("api_keys", ApiKeyConfig::read);
        let mut limits = root
            .section("limits", ClientLimits::read)
            .unwrap_or_default();
        let defaults = root.section("defaults", |section| {
            let built_in = RouteSettings::default();
            Some(RouteSettings::read(section, &built_in, None))
        });
        let defaults = defaults.unwrap_or_default();
        Arc::make_mut(&mut limits.http).deadline = defaults.deadline;
        let stop = root
            .section("stop", ShutdownConfig::read)
            .unwrap_or_default();
        let handover = root.section("handover", |section| {
            section.required("socket", |f| f.text(1..=100))
        });
        let access_log = root
            .section("access_log", AccessLogConfig::read)
            .unwrap_or_default();
        let tracing = TracingConfig::read_optional(root, env);
        let upstreams = root.section("upstream", |section| {
            Some(section.entries(UpstreamConfig::read))
        });
        let upstreams = upstreams.unwrap_or_default();
        let mut routes = route::read_all(root, &upstreams, &defaults);
        let issuers = identity.as_ref().map(|identity| identity.issuers());
        policy::restrict_owners(&mut routes, issuers.unwrap_or_default());
        let ambiguous_paths = routes.iter().any(|route| route.settings.ambiguous_paths);
        Arc::make_mut(&mut limits.http).head.ambiguous_paths = ambiguous_paths;
        // So that a page can read the error response.
        let of_routes = routes.iter().find_map(|route| route.settings.cors.clone());
        let cors = defaults.cors.or(of_routes);
        let tests = root.list("test", |field| route_test::read(field, &routes, &upstreams));
        Some(Self {
            listen,
            acme,
            admin,
            config_history,
            log,
            workers,
            identity: identity?,
            tokens,
            api_keys,
            limits,
            stop,
            handover: handover.map(PathBuf::from),
            access_log,
            tracing,
            upstreams,
            cors,
            response_headers: defaults.response_headers,
            routes,
            tests,
        })
    }
}

impl Config {
    /// Returns the trusted issuers. The verifier keeps the claims that the policies of these routes
    /// evaluate, and those of `before`, the routes under which requests may still be in flight.
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
}

/// Reads `[admin]` with the folder of the history.
fn read_admin(root: &Object<'_>, env: &Env) -> (Option<AdminListener>, Option<PathBuf>) {
    let mut history = None;
    let admin = read_admin_with(root, None, env, |admin| {
        history = admin.optional("history", |field| field.text(1..=4096));
    });
    (admin, history.map(PathBuf::from))
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

/// Reads a size that fits into memory.
fn memory_size(field: Field<'_>) -> Option<usize> {
    let bytes = field.bytes()?;
    usize::try_from(bytes)
        .ok()
        .or_else(|| field.fail("out_of_range", "is more than this machine can hold"))
}

/// Reads a duration that is not zero: a timeout of zero would reject everything.
fn nonzero_duration(field: Field<'_>) -> Option<Duration> {
    match field.duration()? {
        Duration::ZERO => field.fail("out_of_range", "must be more than 0"),
        duration => Some(duration),
    }
}

/// Reads a list of strings of 1 to 256 bytes.
fn short_texts(field: Field<'_>) -> Option<Vec<String>> {
    field.array(|item| item.text(1..=256))
}
