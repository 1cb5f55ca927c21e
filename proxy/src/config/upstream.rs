//! `[upstream.NAME]`: backend services.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use postern_core::decode::{Field, is_similar};
use postern_core::settings;
use postern_http::message::head::is_authority;

use crate::config::{UpstreamAddress, file_path, nonzero_duration};

settings! {
    /// One service behind the gateway.
    #[derive(Clone, Debug, PartialEq)]
    pub struct UpstreamConfig(table, of: &str) {
        /// The name that routes use.
        pub name: String = (Some(of.to_owned())),
        /// `"host:port"` or `"unix:/path"`.
        pub addresses: Vec<UpstreamAddress> => |field| field.non_empty_array(UpstreamAddress::read),
        /// `Host` of requests, and the name in the certificate unless `tls.name` is set.
        pub host: Option<HeaderValue> = None ("the requested one") => read_host,
        /// The less loaded of two, or each in turn.
        pub load_balancing: LoadBalancing = "least_loaded" => |field| {
            field.one_of(&[
                ("least_loaded", LoadBalancing::LeastLoaded),
                ("round_robin", LoadBalancing::RoundRobin),
            ])
        },
        /// Time to connect, TLS included.
        pub connect_timeout: Duration = "2s" => nonzero_duration,
        /// Until the first byte of the response, and between two reads.
        ///
        /// From the end of the request.
        pub read_timeout: Duration = "30s" => nonzero_duration,
        /// One write, until all of it is accepted.
        pub write_timeout: Duration = "30s" => nonzero_duration,
        /// Time for which an idle connection is kept; Node.js closes after 5 s.
        pub idle_timeout: Duration = "4s" => nonzero_duration,
        /// Concurrent requests to one address; more are 503. Beyond half, one client address has an
        /// eighth.
        ///
        /// Including those that wait for a connection. There is no queue. Trusted proxies are exempt
        /// from the eighth, because they carry requests of many clients.
        pub in_flight: usize = 1024 => |field| field.integer(1..=1_000_000),
        /// Further attempts of a request that was not sent or is idempotent.
        pub retries: u32 = 1 => |field| field.integer(0..=5),
        /// Share of requests that may be retries of sent ones.
        pub retry_budget: u32 = 20 => |field| field.typed("percent").integer(0..=100),
        /// HTTP/2 to the upstream, which gRPC needs.
        pub http2: bool = false => |field| field.boolean(),
        /// Active health checks.
        pub health: Option<HealthCheckConfig> = None
            => |field| field.object(HealthCheckConfig::read),
        /// Outlier detection.
        pub outlier: OutlierDetection = {} => |field| field.object(OutlierDetection::read),
        /// TLS to the upstream.
        pub tls: Option<UpstreamTlsConfig> = None => |field| field.object(UpstreamTlsConfig::read),
    }
}

/// A load balancing algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancing {
    /// Power of two choices: the less loaded of two random addresses (requests in flight times
    /// latency, which follows peaks at once).
    LeastLoaded,
    /// Each address in turn.
    RoundRobin,
}

settings! {
    /// Active health checks.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HealthCheckConfig(table) {
        /// `GET` of this path must answer 200 to 399.
        pub path: Option<String> = None ("TCP connect")
            => |field| match field.typed("path").text(1..=1024)? {
                path if path.starts_with('/') => Some(path),
                _ => field.fail("invalid_format", "must begin with /"),
            },
        /// Time between two checks.
        pub interval: Duration = "5s" => nonzero_duration,
        /// Time for one check.
        pub timeout: Duration = "2s" => nonzero_duration,
        /// Checks in a row that make an address unhealthy, and healthy.
        pub failures: u32 = 2 => |field| field.integer(1..=100),
        /// Checks in a row that make an address unhealthy, and healthy.
        pub successes: u32 = 2 => |field| field.integer(1..=100),
    }
}

settings! {
    /// Outlier detection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OutlierDetection(table) {
        /// Failures in a row that eject an address; 0 disables it.
        ///
        /// A failure is a connection failure, a reset, a timeout, or 502 to 504.
        pub failures: u32 = 5 => |field| field.integer(0..=1000),
        /// Times the number of consecutive ejections.
        pub ejection: Duration = "10s" => nonzero_duration,
        /// Share of addresses that may be excluded, else
        /// [panic mode](../manual/gateway.md#load-balancing-health-and-retries).
        ///
        /// In panic mode first attempts ignore ejections and health. If all addresses are ejected or
        /// unhealthy, they are used at any percentage.
        pub panic_percent: u32 = 50 => |field| field.typed("percent").integer(0..=100),
    }
}

settings! {
    /// TLS to the upstream.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct UpstreamTlsConfig(table) {
        /// Name in its certificate.
        pub name: Option<String> = None ("`host`, or that of the address")
            => |field| field.text(1..=253),
        /// Certificate authorities, PEM.
        pub ca: Option<PathBuf> = None ("system") => file_path,
        /// PEM of certificates, of which it must present one; nothing else is examined. Not with `ca`.
        ///
        /// Whatever their issuers, names and validity periods.
        pub pin: Option<PathBuf> = None => file_path,
        /// Client certificate and its key, PEM.
        pub certificate: Option<PathBuf> = None => file_path,
        /// Client certificate and its key, PEM.
        pub key: Option<PathBuf> = None => file_path,
    } => {
        if table.has("certificate") != table.has("key") {
            table.fail("missing_field", "certificate and key go together");
        }
        if table.has("ca") && table.has("pin") {
            table.fail("conflicting_fields", "has ca or pin, not both");
        }
    }
}

impl UpstreamConfig {
    /// Returns whether certificates are verified with the system's certificate authorities.
    pub(crate) fn uses_system_roots(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(UpstreamTlsConfig::uses_system_roots)
    }

    pub(super) fn read_named(name: &str, field: Field<'_>) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(known) {
            return field.fail(
                "invalid_format",
                "the name may hold letters, digits, - and _",
            );
        }
        field.object(|table| Self::read(table, name))
    }

    /// Returns the `Host` of a request that the gateway sends on its own behalf.
    pub(crate) fn own_host(&self) -> &str {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        let address = self.addresses.first().map(UpstreamAddress::server_name);
        host.or(address).unwrap_or_default()
    }

    /// Returns the name that the certificate of an address must have.
    pub(crate) fn certificate_name(&self, at: usize) -> &str {
        let tls = self.tls.as_ref().and_then(|tls| tls.name.as_deref());
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        let without_port = |host: &'_ str| match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => name.len(),
            Some(_) | None => host.len(),
        };
        let host = host.map(|host| host[..without_port(host)].trim_matches(['[', ']']));
        tls.or(host)
            .unwrap_or_else(|| self.addresses[at].server_name())
    }
}

impl UpstreamTlsConfig {
    /// Returns whether the certificate is verified with the system's certificate authorities.
    pub(crate) fn uses_system_roots(&self) -> bool {
        self.ca.is_none() && self.pin.is_none()
    }
}

fn read_host(field: Field<'_>) -> Option<HeaderValue> {
    let text = field.typed("host and port").text(1..=255)?;
    let host = HeaderValue::from_str(&text).ok();
    host.filter(|_| is_authority(text.as_bytes())).or_else(|| {
        field.fail(
            "invalid_format",
            "must be a host such as app.example.net or app.internal:8080",
        )
    })
}

/// Returns the position of the upstream with this name. If there is none, the field fails, with a hint
/// at a similar name.
pub(super) fn find_upstream(
    upstreams: &[UpstreamConfig],
    name: &str,
    field: Field<'_>,
) -> Option<usize> {
    let found = upstreams.iter().position(|it| it.name == name);
    found.or_else(|| {
        let mut names = upstreams.iter().map(|it| it.name.as_str());
        let similar = names.find(|known| is_similar(known, name));
        let hint = similar.map(|known| format!("; did you mean `{known}`?"));
        let hint = hint.unwrap_or_default();
        field.fail(
            "unknown_upstream",
            format!("there is no [upstream.{name}]{hint}"),
        )
    })
}
