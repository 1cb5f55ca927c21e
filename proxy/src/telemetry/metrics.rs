//! Prometheus metrics. Label values come from the configuration or from closed sets, never from
//! clients.

/// Defines metrics, and `new`, which registers them. Each has a kind (a method of [`MetricFactory`]), a
/// name, a help text and, depending on its kind, labels.
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        pub(crate) struct $group:ident {
            $($(#[$doc:meta])* $vis:vis $field:ident: $kind:ident($($argument:expr),+),)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $group { $($(#[$doc])* $vis $field: metrics!(@$kind),)+ }

        impl $group {
            pub(super) fn new(make: &$crate::telemetry::metrics::MetricFactory) -> prometheus::Result<Self> {
                Ok(Self { $($field: make.$kind($($argument),+)?,)+ })
            }
        }
    };
    (@counter) => { prometheus::IntCounter };
    (@counters) => { prometheus::IntCounterVec };
    (@gauge) => { prometheus::IntGauge };
    (@flag) => { prometheus::IntGauge };
    (@gauges) => { prometheus::IntGaugeVec };
    (@seconds) => { prometheus::HistogramVec };
    (@fine_seconds) => { prometheus::Histogram };
}
pub(super) use metrics;

mod compression;
mod upstream;

use std::ops::Deref;
use std::sync::Arc;

use postern_service::http::LATENCY_BUCKETS_S;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result,
};
use strum::IntoStaticStr;

use crate::telemetry::certificate_metrics::CertificateMetrics;
pub(crate) use compression::CompressionMetrics;
pub(crate) use upstream::UpstreamMetrics;

#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    pub(crate) registry: Registry,
    #[cfg(test)]
    families: Vec<(String, Vec<String>)>,
    general: GeneralMetrics,
    pub(crate) compression: CompressionMetrics,
    pub(crate) upstream: UpstreamMetrics,
    pub(crate) certificates: Arc<CertificateMetrics>,
    pub(crate) external_authorization: ExternalAuthorizationMetrics,
    pub(crate) live_tail: LiveTailMetrics,
    pub(crate) config: ConfigMetrics,
    pub(crate) credentials: CredentialMetrics,
    pub(crate) rate_limits: RateLimitMetrics,
}

metrics! {
    /// Metrics of requests and connections, and of what is dropped.
    pub(crate) struct GeneralMetrics {
        pub(crate) requests: counters("postern_requests_total",
            "Requests by route, status class and code", &["route", "class", "code"]),
        pub(crate) duration: seconds("postern_request_seconds",
            "Time from the request head to the end of the response", "route"),
        pub(crate) overhead: fine_seconds("postern_overhead_seconds",
            "Time from the request head to the choice of an upstream address"),
        pub(crate) mirrored: counters("postern_proxy_mirrored_requests_total",
            "Requests chosen to be mirrored by result (answered, failed, timed_out, dropped_…)",
            &["route", "result"]),
        pub(crate) report_only: counters("postern_proxy_report_only_requests_total",
            "Requests that a route with report_only would have rejected", &["route", "code"]),
        pub(crate) rejected_before_routing: counters("postern_proxy_rejected_before_routing_total",
            "Request heads rejected before routing", &["code"]),
        pub(crate) requests_in_flight: gauge("postern_proxy_requests_in_flight",
            "Requests whose head was received and whose response has not ended"),
        pub(crate) connections: gauge("postern_connections", "Open client connections"),
        pub(crate) connections_refused: counter("postern_connections_refused_total",
            "Connections closed because of the limit per client address"),
        connections_closed: counters("postern_proxy_connections_closed_total",
            "Connections closed before their first request, by reason", &["reason"]),
        pub(crate) response_buffers: gauge("postern_response_buffer_bytes",
            "Bytes reserved for responses to slow readers"),
        pub(crate) tls_failed: counter("postern_tls_handshakes_failed_total",
            "Failed TLS handshakes"),
        pub(crate) rapid_resets: counter("postern_http2_rapid_resets_total",
            "HTTP/2 connections closed because of too many reset streams"),
        pub(crate) events_dropped: counter("postern_access_events_dropped_total",
            "Dropped access events"),
        pub(crate) spans_dropped: counter("postern_spans_dropped_total", "Dropped spans"),
        pub(crate) jwks_age: gauges("postern_jwks_age_seconds",
            "Time since the keys of an issuer were fetched", &["issuer"]),
    }
}

/// The reason for which a connection is closed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum CloseReason {
    /// The access list of the listener does not accept the address.
    AddressNotAllowed,
    /// A trusted load balancer sent no PROXY protocol header.
    ProxyHeaderMissing,
    /// A trusted load balancer sent a malformed PROXY protocol header.
    ProxyHeaderMalformed,
    /// A PROXY protocol header was not complete in time.
    ProxyHeaderTimeout,
}

metrics! {
    pub(crate) struct ConfigMetrics {
        info: gauges("postern_proxy_config_info",
            "1 for the hash of the active configuration: equal files have equal hashes", &["hash"]),
        pub(crate) version: gauge("postern_config_version", "Number of the active configuration, from 1"),
        pub(crate) rejected_reloads: counter("postern_config_refused_total",
            "Rejected configuration reloads"),
        pub(crate) last_reload_successful: gauge("postern_proxy_config_last_reload_successful",
            "1 if the configuration file is active, 0 if its last reload was rejected"),
    }
}

metrics! {
    /// Metrics of external authorization, by route.
    pub(crate) struct ExternalAuthorizationMetrics {
        pub(crate) results: counters("postern_proxy_external_authorizations_total",
            "Requests by the result of external authorization (allowed, denied, failed)", &["route", "result"]),
        pub(crate) call_seconds: seconds("postern_proxy_external_authorization_call_seconds",
            "Time of calls of external authorization services", "route"),
    }
}

metrics! {
    pub(crate) struct RateLimitMetrics {
        pub(crate) keys: gauge("postern_limiter_keys", "Keys tracked by the rate limiter"),
        pub(crate) rejected: counters("postern_proxy_rate_limited_requests_total",
            "Requests rejected by a rate limit (address, principal, route)", &["route", "limit"]),
    }
}

metrics! {
    #[derive(Clone)]
    pub(crate) struct LiveTailMetrics {
        pub(crate) tails: gauge("postern_proxy_live_tails", "Readers of GET /admin/requests"),
        pub(crate) dropped: counter("postern_proxy_live_tail_events_dropped_total",
            "Events that readers of GET /admin/requests did not get"),
    }
}

metrics! {
    pub(crate) struct CredentialMetrics {
        pub(crate) token_cache_entries: gauge("postern_proxy_token_cache_entries",
            "Cached token verifications"),
        pub(crate) token_cache_bytes: gauge("postern_proxy_token_cache_bytes",
            "Memory of the cached token verifications"),
        pub(crate) api_key_last_used: gauges("postern_proxy_api_key_last_used_timestamp_seconds",
            "Time of the last use of an API key since the start; 0 if it was not used", &["name", "id"]),
        pub(crate) api_key_reload_successful: flag("postern_proxy_api_keys_last_reload_successful",
            "1 if the API keys of the file are in use, 0 if its last reload was rejected"),
    }
}

/// Histogram buckets in seconds for durations within the gateway: 10 µs to 100 ms.
const FINE_BUCKETS: [f64; 10] = [
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1,
];

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The code of requests that were forwarded and answered.
pub(crate) const OK_CODE: &str = "ok";

pub(crate) const CLIENT_CLOSED_CODE: &str = "client_closed";

/// The route label of requests that match no route.
pub(crate) const NO_ROUTE: &str = "none";

pub(super) struct MetricFactory {
    registry: Registry,
    /// Names and labels of all metrics: a registry exports those with a value only.
    #[cfg(test)]
    families: std::cell::RefCell<Vec<(String, Vec<String>)>>,
}

impl MetricFactory {
    fn new() -> Self {
        Self {
            registry: Registry::new(),
            #[cfg(test)]
            families: std::cell::RefCell::default(),
        }
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    /// Creates a gauge that is 1 at first.
    pub(super) fn flag(&self, name: &str, help: &str) -> Result<IntGauge> {
        let gauge = self.gauge(name, help)?;
        gauge.set(1);
        Ok(gauge)
    }

    pub(super) fn seconds(&self, name: &str, help: &str, label: &str) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(LATENCY_BUCKETS_S.to_vec());
        self.add(HistogramVec::new(options, &[label])?)
    }

    /// Creates a histogram for durations in the range of microseconds.
    fn fine_seconds(&self, name: &str, help: &str) -> Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(FINE_BUCKETS.to_vec());
        self.add(Histogram::with_opts(options)?)
    }

    fn add<F: Collector + Clone + 'static>(&self, family: F) -> Result<F> {
        #[cfg(test)]
        for desc in family.desc() {
            let family = (desc.fq_name.clone(), desc.variable_labels.clone());
            self.families.borrow_mut().push(family);
        }
        self.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

impl GatewayMetrics {
    /// # Errors
    /// If two metrics have the same name.
    pub(crate) fn new() -> Result<Self> {
        let make = MetricFactory::new();
        Ok(Self {
            general: GeneralMetrics::new(&make)?,
            compression: CompressionMetrics::new(&make)?,
            upstream: UpstreamMetrics::new(&make)?,
            certificates: Arc::new(CertificateMetrics::new(&make)?),
            external_authorization: ExternalAuthorizationMetrics::new(&make)?,
            live_tail: LiveTailMetrics::new(&make)?,
            config: ConfigMetrics::new(&make)?,
            credentials: CredentialMetrics::new(&make)?,
            rate_limits: RateLimitMetrics::new(&make)?,
            registry: make.registry,
            #[cfg(test)]
            families: make.families.take(),
        })
    }

    pub(crate) fn count(&self, route: &str, status: u16, code: &str) {
        self.requests
            .with_label_values(&[route, status_class(status), code])
            .inc();
    }

    /// Counts a connection that is closed before its first request.
    pub(crate) fn count_closed(&self, reason: CloseReason) {
        self.connections_closed
            .with_label_values(&[reason.as_str()])
            .inc();
    }
}

impl Deref for GatewayMetrics {
    type Target = GeneralMetrics;

    fn deref(&self) -> &GeneralMetrics {
        &self.general
    }
}

impl CloseReason {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }
}

impl ConfigMetrics {
    pub(crate) fn set_hash(&self, hash: &str) {
        self.info.reset();
        self.info.with_label_values(&[hash]).set(1);
    }
}

fn status_class(status: u16) -> &'static str {
    STATUS_CLASSES[usize::from(status / 100).clamp(1, 5) - 1]
}

#[cfg(test)]
mod tests;
