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

use postern_core::config::{AdminListener, Env};
use postern_core::decode::Field;
use postern_core::identity::TrustConfig;
use postern_core::settings;
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
    HealthCheckConfig, LoadBalancing, OutlierDetection, UpstreamConfig, UpstreamTlsConfig,
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
    /// The routes: those of `[[route]]` and then those of `[[group]]`, in the order of the file.
    pub routes: Vec<Route>,
    /// The CORS policy for requests that match no route: that of `[defaults]`, or else that of the first
    /// route with one.
    pub cors: Option<Arc<CorsPolicy>>,
    /// The changes of responses to requests that match no route: those of `[defaults]`.
    pub response_headers: Option<Arc<HeaderChanges>>,
    /// Requests whose decision must be as specified before the configuration is activated.
    pub tests: Vec<RouteTest>,
}

settings! {
    /// Cache of verified tokens. Read at start.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TokenConfig(table) {
        /// For about 100,000 tokens.
        ///
        /// The identity is cached under a digest of the token, not the token itself.
        pub cache_bytes: usize = "40MiB" => memory_size,
        /// Folder that keeps the last good keys across restarts, 0700; refused if others may write it.
        pub jwks_dir: Option<PathBuf> = None => file_path,
    }
}

settings! {
    /// Graceful shutdown.
    #[derive(Clone, Copy, Debug)]
    pub struct ShutdownConfig(table) {
        /// From unready to the end of accepting.
        ///
        /// The process still accepts requests, so that load balancers stop sending first.
        pub notice: Duration = "0s" => |field| field.duration(),
        /// Time for requests in flight.
        ///
        /// From the end of `notice`. The process exits as soon as no connection is open.
        pub drain: Duration = "30s" => |field| field.duration(),
        /// Time for a last request of an idle HTTP/1.1 connection.
        ///
        /// From the end of `notice`. Its response carries `Connection: close`. Less than `drain`, or 0.
        /// A busy client is thus not disconnected without notice (RFC 9112 section 9.6).
        pub linger: Duration = { Some(Duration::from_secs(1).min(drain? / 2)) }
            ("`1s`, at most half of `drain`")
            => |field| match field.duration()? {
                linger if linger.is_zero() || linger < drain? => Some(linger),
                _ => field.fail("out_of_range", "must be less than drain, or 0"),
            },
    }
}

impl Config {
    settings! {
        /// Decodes the root of the document, without running the route tests. Returns `None`, with the
        /// mistakes recorded, if it is invalid.
        pub fn decode(root, env: &Env) -> Self {
            /// Listeners for clients; at least one. Read at start, but `access`.
            listen = [..] ("at least one [[listen]] is required")
                => |field| field.object(ListenerConfig::read),
            /// ACME server (RFC 8555) for `tls.acme`, see [ACME](../manual/gateway.md#acme). Read at
            /// start.
            acme = None => |field| field.object(AcmeConfig::read),
            admin = (Some(root.section("admin", |table| read_admin(table, env)))),
            log = (Some(Log::read_section(root, env))),
            /// Worker threads. Read at start.
            workers = None ("number of cores") => |field| field.integer(1..=256),
            identity = (TrustConfig::read(root, env)),
            tokens = {} => |field| field.object(TokenConfig::read),
            api_keys = None => |field| field.object(ApiKeyConfig::read),
            limits = {} => |field| field.object(ClientLimits::read),
            /// Settings of all routes.
            defaults = {} => |field| field.object(|table| {
                Some(RouteSettings::read(table, &RouteSettings::built_in(), None))
            }),
            stop = {} => |field| field.object(ShutdownConfig::read),
            /// Hot restart with `run --take-over`. Read at start.
            handover = None => |field| field.object(read_handover),
            access_log = {} => |field| field.object(AccessLogConfig::read),
            tracing = (Some(TracingConfig::read_optional(root, env))),
            /// Upstreams by name.
            upstreams as upstream = {}
                => |field| field.object(|table| Some(table.entries(UpstreamConfig::read_named))),
            routing = (Some(route::read_all(
                root,
                upstreams.as_deref().unwrap_or_default(),
                defaults.as_ref().unwrap_or(&RouteSettings::built_in()),
            ))),
            acme_is_checked = (listen.as_deref().map(|listen| acme::check(root, listen))),
        } => {
            let (admin, config_history) = admin.unzip();
            let (mut routes, tests) = routing;
            policy::restrict_owners(&mut routes, identity.issuers());
            let mut limits = limits;
            let http = Arc::make_mut(&mut limits.http);
            http.deadline = defaults.deadline;
            http.head.ambiguous_paths = routes.iter().any(|route| route.settings.ambiguous_paths);
            // So that a page can read the error response.
            let of_routes = routes.iter().find_map(|route| route.settings.cors.clone());
            Self {
                listen,
                acme,
                admin,
                config_history: config_history.flatten(),
                log,
                workers,
                identity,
                tokens,
                api_keys,
                limits,
                stop,
                handover,
                access_log,
                tracing,
                upstreams,
                cors: defaults.cors.or(of_routes),
                response_headers: defaults.response_headers,
                routes,
                tests,
            }
        }
    }
}

settings! {
    fn read_admin(table, env: &Env) -> (AdminListener, Option<PathBuf>) {
        /// Folder of the last 50 configurations, 0700; with `admin.token_env` only. Read at start.
        history = None ("the file with `.history` added") => file_path,
        listener = (AdminListener::read(table, None, env)),
    } => (listener, history)
}

settings! {
    fn read_handover(table) -> PathBuf {
        /// Unix socket for it, in a folder of its owner only.
        socket => |field| field.typed("path").text(1..=100),
    } => socket.into()
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

fn memory_size(field: Field<'_>) -> Option<usize> {
    let bytes = field.bytes()?;
    usize::try_from(bytes)
        .ok()
        .or_else(|| field.fail("out_of_range", "is more than this machine can hold"))
}

fn file_path(field: Field<'_>) -> Option<PathBuf> {
    field.typed("path").text(1..=4096).map(PathBuf::from)
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
