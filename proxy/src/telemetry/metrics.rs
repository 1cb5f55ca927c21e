//! Prometheus metrics. Label values come from the configuration or from closed sets, never from
//! clients.

mod compression;
mod live_tail;
mod rate_limits;
mod report_only;
mod upstream;

use std::sync::{Arc, OnceLock};

use postern_core::Code;
use postern_service::http::LATENCY_BUCKETS_S;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::telemetry::certificate_metrics::CertificateMetrics;
pub(crate) use compression::CompressionMetrics;
pub(crate) use live_tail::LiveTailMetrics;
pub(crate) use rate_limits::RateLimitMetrics;
use report_only::ReportOnlyMetrics;
pub(crate) use upstream::UpstreamMetrics;

/// The metrics of the gateway.
#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    pub(crate) registry: Registry,
    /// Names and labels of all metrics.
    #[cfg(test)]
    families: Vec<(String, Vec<String>)>,
    pub(crate) requests: IntCounterVec,
    pub(crate) duration: HistogramVec,
    pub(crate) overhead: Histogram,
    pub(crate) compression: Arc<CompressionMetrics>,
    /// Mirrored requests.
    pub(crate) mirrored: IntCounterVec,
    pub(crate) upstream: UpstreamMetrics,
    pub(crate) rejected_before_routing: IntCounterVec,
    pub(crate) requests_in_flight: IntGauge,
    pub(crate) connections: IntGauge,
    pub(crate) connections_refused: IntCounter,
    pub(crate) connections_closed: ClosedConnections,
    pub(crate) response_buffers: IntGauge,
    pub(crate) tls_failed: IntCounter,
    pub(crate) certificates: Arc<CertificateMetrics>,
    pub(crate) rapid_resets: IntCounter,
    pub(crate) external_authorization: ExternalAuthorizationMetrics,
    pub(crate) report_only: ReportOnlyMetrics,
    pub(crate) events_dropped: IntCounter,
    pub(crate) live_tail: LiveTailMetrics,
    pub(crate) spans_dropped: IntCounter,
    pub(crate) config: ConfigMetrics,
    pub(crate) credentials: CredentialMetrics,
    pub(crate) jwks_age: IntGaugeVec,
    pub(crate) rate_limits: RateLimitMetrics,
}

/// Connections that were closed before their first request.
#[derive(Debug)]
pub(crate) struct ClosedConnections(IntCounterVec);

/// The reason for which a connection is closed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Metrics of the configuration.
#[derive(Debug)]
pub(crate) struct ConfigMetrics {
    info: IntGaugeVec,
    pub(crate) version: IntGauge,
    pub(crate) rejected_reloads: IntCounter,
    pub(crate) last_reload_successful: IntGauge,
}

/// Metrics of external authorization, by route.
#[derive(Debug)]
pub(crate) struct ExternalAuthorizationMetrics {
    pub(crate) results: IntCounterVec,
    pub(crate) call_seconds: HistogramVec,
}

/// Metrics of tokens and API keys.
#[derive(Debug)]
pub(crate) struct CredentialMetrics {
    pub(crate) token_cache_entries: IntGauge,
    pub(crate) token_cache_bytes: IntGauge,
    pub(crate) api_key_last_used: IntGaugeVec,
    pub(crate) api_key_reload_successful: IntGauge,
}

/// The metrics of one route, created when first used: a configuration may have ten thousand routes,
/// most of which are rarely used.
#[derive(Debug, Default)]
pub(crate) struct RouteMetrics {
    by_class: [OnceLock<IntCounter>; 5],
    duration: OnceLock<Histogram>,
}

/// Histogram buckets in seconds for durations within the gateway: 10 µs to 100 ms.
const FINE_BUCKETS: [f64; 10] = [
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1,
];

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The code of requests that were forwarded and answered.
pub(crate) const OK_CODE: &str = "ok";

/// The code of a request whose client disconnected.
pub(crate) const CLIENT_CLOSED_CODE: &str = "client_closed";

/// The route label of requests that match no route.
pub(crate) const NO_ROUTE: &str = "none";

/// Creates and registers metrics.
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

    fn requests(&self) -> prometheus::Result<IntCounterVec> {
        self.counters(
            "postern_requests_total",
            "Requests by route, status class and code",
            &["route", "class", "code"],
        )
    }

    fn duration(&self) -> prometheus::Result<HistogramVec> {
        self.seconds(
            "postern_request_seconds",
            "Time from the request head to the end of the response",
            "route",
        )
    }

    fn mirrored(&self) -> prometheus::Result<IntCounterVec> {
        self.counters(
            "postern_proxy_mirrored_requests_total",
            "Requests chosen to be mirrored by result (answered, failed, timed_out, dropped_…)",
            &["route", "result"],
        )
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        label: &str,
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(LATENCY_BUCKETS_S.to_vec());
        self.add(HistogramVec::new(options, &[label])?)
    }

    /// Creates a histogram for durations in the range of microseconds.
    fn fine_seconds(&self, name: &str, help: &str) -> prometheus::Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(FINE_BUCKETS.to_vec());
        self.add(Histogram::with_opts(options)?)
    }

    fn add<F: Collector + Clone + 'static>(&self, family: F) -> prometheus::Result<F> {
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
    pub(crate) fn new() -> prometheus::Result<Self> {
        let make = MetricFactory::new();
        Ok(Self {
            requests: make.requests()?,
            duration: make.duration()?,
            overhead: make.fine_seconds(
                "postern_overhead_seconds",
                "Time from the request head to the choice of an upstream address",
            )?,
            compression: Arc::new(CompressionMetrics::new(&make)?),
            mirrored: make.mirrored()?,
            upstream: UpstreamMetrics::new(&make)?,
            rejected_before_routing: make.counters(
                "postern_proxy_rejected_before_routing_total",
                "Request heads rejected before routing",
                &["code"],
            )?,
            requests_in_flight: make.gauge(
                "postern_proxy_requests_in_flight",
                "Requests whose head was received and whose response has not ended",
            )?,
            connections: make.gauge("postern_connections", "Open client connections")?,
            response_buffers: make.gauge(
                "postern_response_buffer_bytes",
                "Bytes reserved for responses to slow readers",
            )?,
            connections_refused: make.counter(
                "postern_connections_refused_total",
                "Connections closed because of the limit per client address",
            )?,
            connections_closed: ClosedConnections::new(&make)?,
            tls_failed: make.counter(
                "postern_tls_handshakes_failed_total",
                "Failed TLS handshakes",
            )?,
            certificates: Arc::new(CertificateMetrics::new(&make)?),
            rapid_resets: make.counter(
                "postern_http2_rapid_resets_total",
                "HTTP/2 connections closed because of too many reset streams",
            )?,
            external_authorization: ExternalAuthorizationMetrics::new(&make)?,
            report_only: ReportOnlyMetrics::new(&make)?,
            events_dropped: make.counter(
                "postern_access_events_dropped_total",
                "Dropped access events",
            )?,
            live_tail: LiveTailMetrics::new(&make)?,
            spans_dropped: make.counter("postern_spans_dropped_total", "Dropped spans")?,
            config: ConfigMetrics::new(&make)?,
            credentials: CredentialMetrics::new(&make)?,
            jwks_age: make.gauges(
                "postern_jwks_age_seconds",
                "Time since the keys of an issuer were fetched",
                &["issuer"],
            )?,
            rate_limits: RateLimitMetrics::new(&make)?,
            registry: make.registry,
            #[cfg(test)]
            families: make.families.take(),
        })
    }

    /// Counts a request that was rejected or failed.
    pub(crate) fn count(&self, route: &str, status: u16, code: &str) {
        self.requests
            .with_label_values(&[route, status_class(status), code])
            .inc();
    }

    /// Counts a rejected head.
    pub(crate) fn count_rejected_head(&self, code: Code) {
        self.rejected_before_routing
            .with_label_values(&[code.as_str()])
            .inc();
    }
}

impl ClosedConnections {
    fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        let by_reason = make.counters(
            "postern_proxy_connections_closed_total",
            "Connections closed before their first request, by reason",
            &["reason"],
        )?;
        Ok(Self(by_reason))
    }

    pub(crate) fn count(&self, reason: CloseReason) {
        self.0.with_label_values(&[reason.as_str()]).inc();
    }
}

impl CloseReason {
    /// Returns the label value.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AddressNotAllowed => "address_not_allowed",
            Self::ProxyHeaderMissing => "proxy_header_missing",
            Self::ProxyHeaderMalformed => "proxy_header_malformed",
            Self::ProxyHeaderTimeout => "proxy_header_timeout",
        }
    }
}

impl ConfigMetrics {
    fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        Ok(Self {
            info: make.gauges(
                "postern_proxy_config_info",
                "1 for the hash of the active configuration: equal files have equal hashes",
                &["hash"],
            )?,
            version: make.gauge(
                "postern_config_version",
                "Number of the active configuration, from 1",
            )?,
            rejected_reloads: make.counter(
                "postern_config_refused_total",
                "Rejected configuration reloads",
            )?,
            last_reload_successful: make.gauge(
                "postern_proxy_config_last_reload_successful",
                "1 if the configuration file is active, 0 if its last reload was rejected",
            )?,
        })
    }
}

impl ConfigMetrics {
    /// Records the hash of the active configuration.
    pub(crate) fn set_hash(&self, hash: &str) {
        self.info.reset();
        self.info.with_label_values(&[hash]).set(1);
    }
}

impl ExternalAuthorizationMetrics {
    fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        Ok(Self {
            results: make.counters(
                "postern_proxy_external_authorizations_total",
                "Requests by the result of external authorization (allowed, denied, failed)",
                &["route", "result"],
            )?,
            call_seconds: make.seconds(
                "postern_proxy_external_authorization_call_seconds",
                "Time of calls of external authorization services",
                "route",
            )?,
        })
    }
}

impl CredentialMetrics {
    fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        let metrics = Self {
            token_cache_entries: make.gauge(
                "postern_proxy_token_cache_entries",
                "Cached token verifications",
            )?,
            token_cache_bytes: make.gauge(
                "postern_proxy_token_cache_bytes",
                "Memory of the cached token verifications",
            )?,
            api_key_last_used: make.gauges(
                "postern_proxy_api_key_last_used_timestamp_seconds",
                "Time of the last use of an API key since the start; 0 if it was not used",
                &["name", "id"],
            )?,
            api_key_reload_successful: make.gauge(
                "postern_proxy_api_keys_last_reload_successful",
                "1 if the API keys of the file are in use, 0 if its last reload was rejected",
            )?,
        };
        metrics.api_key_reload_successful.set(1);
        Ok(metrics)
    }
}

impl RouteMetrics {
    /// Counts a request that its upstream answered.
    pub(crate) fn count_ok(&self, all: &GatewayMetrics, route: &str, status: u16) {
        let at = usize::from(status / 100).clamp(1, 5) - 1;
        self.by_class[at]
            .get_or_init(|| {
                all.requests
                    .with_label_values(&[route, STATUS_CLASSES[at], OK_CODE])
            })
            .inc();
    }

    /// Records the duration of a request.
    pub(crate) fn observe(&self, all: &GatewayMetrics, route: &str, seconds: f64) {
        self.duration
            .get_or_init(|| all.duration.with_label_values(&[route]))
            .observe(seconds);
    }
}

fn status_class(status: u16) -> &'static str {
    STATUS_CLASSES[usize::from(status / 100).clamp(1, 5) - 1]
}

#[cfg(test)]
mod tests;
