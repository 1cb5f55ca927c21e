//! `[upstream.NAME]`: backend services.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use postern_core::decode::{Field, Object, is_similar};
use postern_http::message::head::is_authority;

use crate::config::upstream_address::read_addresses;
use crate::config::{UpstreamAddress, nonzero_duration};

/// `[upstream.NAME]`: a backend service.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// The name that routes use.
    pub name: String,
    /// The addresses; at least one.
    pub addresses: Vec<UpstreamAddress>,
    /// `Host` and `:authority` of requests, and by default the name of its certificate; default the
    /// requested host.
    pub host: Option<HeaderValue>,
    /// The load balancing algorithm; default least-loaded.
    pub load_balancing: LoadBalancing,
    /// Time to establish a connection, including the TLS handshake; default 2 s.
    pub connect_timeout: Duration,
    /// Time from the end of the request to the first byte of the response, and between two reads of
    /// the response; default 30 s.
    pub read_timeout: Duration,
    /// Time for one write; default 30 s.
    pub write_timeout: Duration,
    /// Time for which an idle connection is kept open; default 4 s. Node.js closes after 5 s.
    pub idle_timeout: Duration,
    /// Maximum requests in flight to one address, including those that wait for a connection;
    /// default 1,024. Requests above the limit get 503 at once, without queueing. While half of the
    /// limit is in use, one client address may use an eighth of it; trusted proxies are exempt,
    /// because they carry requests of many clients.
    pub in_flight: usize,
    /// Maximum retries of a request that was not sent or that is idempotent; default 1.
    pub retries: u32,
    /// Retry budget: retries of requests that were sent, in percent of requests; default 20.
    pub retry_budget: u32,
    /// Active health checks; default none.
    pub health: Option<HealthCheckConfig>,
    /// Outlier detection; on by default.
    pub outlier: OutlierDetection,
    /// TLS to the upstream; default none.
    pub tls: Option<UpstreamTlsConfig>,
    /// Whether the upstream is spoken to in HTTP/2; default false.
    pub http2: bool,
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

/// `[upstream.NAME.health]`: active health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckConfig {
    /// The kind of check.
    pub probe: HealthProbe,
    /// Time between two checks; default 5 s.
    pub interval: Duration,
    /// Time for one check; default 2 s.
    pub timeout: Duration,
    /// Consecutive failures after which an address is unhealthy; default 2.
    pub failures: u32,
    /// Consecutive successes after which an address is healthy again; default 2.
    pub successes: u32,
}

/// A kind of health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthProbe {
    /// A TCP connection.
    Tcp,
    /// `GET` of this path with a status of 200 to 399.
    Http(String),
}

/// `[upstream.NAME.outlier]`: outlier detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierDetection {
    /// Consecutive failures (connection failure, reset, timeout, 502 to 504) after which an address
    /// is ejected; 0 disables ejection; default 5.
    pub failures: u32,
    /// Duration of an ejection, multiplied by the number of consecutive ejections; default 10 s.
    pub ejection: Duration,
    /// Percentage of ejected or unhealthy addresses above which first attempts ignore ejections and
    /// health (panic mode); default 50. If all addresses are ejected or unhealthy, they are used at
    /// any percentage.
    pub panic_percent: u32,
}

/// `[upstream.NAME.tls]`: TLS to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// The expected name in the certificate; default the host of the address.
    pub name: Option<String>,
    /// PEM file of certificate authorities; default the system's.
    pub ca: Option<PathBuf>,
    /// PEM file of the certificates of which the upstream must present one itself, whatever their
    /// issuers, names and validity periods; default none.
    pub pin: Option<PathBuf>,
    /// PEM file of the client certificate chain.
    pub certificate: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    pub key: Option<PathBuf>,
}

// === impl UpstreamConfig ===

impl UpstreamConfig {
    /// Returns whether certificates are verified with the system's certificate authorities.
    pub(crate) fn uses_system_roots(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(UpstreamTlsConfig::uses_system_roots)
    }

    pub(super) fn read(name: &str, field: Field<'_>) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(known) {
            return field.fail(
                "invalid_format",
                "the name may hold letters, digits, - and _",
            );
        }
        field.object(|upstream| {
            let seconds = Duration::from_secs;
            let addresses = upstream.required("addresses", read_addresses);
            Some(Self {
                name: name.to_owned(),
                host: upstream.optional("host", read_host),
                load_balancing: upstream.or("load_balancing", LoadBalancing::LeastLoaded, |it| {
                    it.one_of(&[
                        ("least_loaded", LoadBalancing::LeastLoaded),
                        ("round_robin", LoadBalancing::RoundRobin),
                    ])
                }),
                connect_timeout: upstream.or("connect_timeout", seconds(2), nonzero_duration),
                read_timeout: upstream.or("read_timeout", seconds(30), nonzero_duration),
                write_timeout: upstream.or("write_timeout", seconds(30), nonzero_duration),
                idle_timeout: upstream.or("idle_timeout", seconds(4), nonzero_duration),
                in_flight: upstream.or("in_flight", 1024, |field| field.integer(1..=1_000_000)),
                retries: upstream.or("retries", 1, |field| field.integer(0..=5)),
                retry_budget: upstream.or("retry_budget", 20, |field| field.integer(0..=100)),
                health: upstream.section("health", HealthCheckConfig::read),
                outlier: upstream
                    .section("outlier", OutlierDetection::read)
                    .unwrap_or_default(),
                tls: upstream.section("tls", UpstreamTlsConfig::read),
                http2: upstream.or("http2", false, |field| field.boolean()),
                addresses: addresses?,
            })
        })
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

/// Reads a host with an optional port.
fn read_host(field: Field<'_>) -> Option<HeaderValue> {
    let text = field.text(1..=255)?;
    let host = HeaderValue::from_str(&text).ok();
    host.filter(|_| is_authority(text.as_bytes())).or_else(|| {
        field.fail(
            "invalid_format",
            "must be a host such as app.example.net or app.internal:8080",
        )
    })
}

impl HealthCheckConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let path = section.optional("path", |field| match field.text(1..=1024)? {
            path if path.starts_with('/') => Some(path),
            _ => field.fail("invalid_format", "must begin with /"),
        });
        Some(Self {
            probe: path.map_or(HealthProbe::Tcp, HealthProbe::Http),
            interval: section.or("interval", Duration::from_secs(5), nonzero_duration),
            timeout: section.or("timeout", Duration::from_secs(2), nonzero_duration),
            failures: section.or("failures", 2, |field| field.integer(1..=100)),
            successes: section.or("successes", 2, |field| field.integer(1..=100)),
        })
    }
}

impl OutlierDetection {
    fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        Some(Self {
            failures: section.or("failures", default.failures, |field| {
                field.integer(0..=1000)
            }),
            ejection: section.or("ejection", default.ejection, nonzero_duration),
            panic_percent: section.or("panic_percent", default.panic_percent, |f| {
                f.integer(0..=100)
            }),
        })
    }
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self {
            failures: 5,
            ejection: Duration::from_secs(10),
            panic_percent: 50,
        }
    }
}

impl UpstreamTlsConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let path = |name: &'static str| {
            section
                .optional(name, |field| field.text(1..=4096))
                .map(PathBuf::from)
        };
        let tls = Self {
            name: section.optional("name", |field| field.text(1..=253)),
            ca: path("ca"),
            pin: path("pin"),
            certificate: path("certificate"),
            key: path("key"),
        };
        if tls.certificate.is_some() != tls.key.is_some() {
            section.fail("missing_field", "certificate and key go together");
        }
        if tls.ca.is_some() && tls.pin.is_some() {
            section.fail("conflicting_fields", "has ca or pin, not both");
        }
        Some(tls)
    }

    /// Returns whether the certificate is verified with the system's certificate authorities.
    pub(crate) fn uses_system_roots(&self) -> bool {
        self.ca.is_none() && self.pin.is_none()
    }
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
