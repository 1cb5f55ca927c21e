//! `[upstream.NAME]`: backend services.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use postern_common::decode::{Field, Object, Value};
use serde_json::json;

use crate::config::{LoadBalancing, nonzero_duration};
use crate::message::proxy_protocol::ProxyProtocolVersion;

/// `[upstream.NAME]`: a backend service.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// The name that routes use.
    pub name: String,
    /// The addresses; at least one.
    pub addresses: Vec<UpstreamAddress>,
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
    /// The version of the PROXY protocol header with which connections begin; default none. A
    /// connection then carries requests of one client only.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    /// Whether requests have the field `Forwarded` (RFC 7239); default false.
    pub forwarded: bool,
    /// Time in which a new or recovered address reaches its full share of the requests; default
    /// none.
    pub slow_start: Option<Duration>,
    /// Time for requests in flight to a removed address, after which they are aborted; default 30 s.
    pub drain_timeout: Duration,
}

/// A host and port, or the name of SRV records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// An IP address, or a DNS name that is resolved in the background.
    pub host: String,
    /// The port; 0 for SRV records, which have their own.
    pub port: u16,
    /// Weight relative to the other addresses; default 1.
    pub weight: u32,
    /// Whether `host` is the name of SRV records (RFC 2782), written as `srv://name`.
    pub is_srv: bool,
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
    /// PEM file of the client certificate chain.
    pub certificate: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    pub key: Option<PathBuf>,
}

// === impl UpstreamConfig ===

impl UpstreamConfig {
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
            let load_balancing = LoadBalancing::read(upstream);
            let is_consistent = matches!(load_balancing, LoadBalancing::Consistent(_));
            let slow_start = upstream.optional("slow_start", |field| match is_consistent {
                true => field.fail(
                    "conflicting_fields",
                    "is not possible with load_balancing = \"consistent\": a key would change its address",
                ),
                false => nonzero_duration(field),
            });
            let http2 = upstream.or("http2", false, |field| field.boolean());
            Some(Self {
                name: name.to_owned(),
                load_balancing,
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
                http2,
                proxy_protocol: upstream
                    .optional("proxy_protocol", |field| read_proxy_protocol(field, http2)),
                forwarded: upstream.or("forwarded", false, |field| field.boolean()),
                slow_start,
                drain_timeout: upstream.or("drain_timeout", seconds(30), |field| field.duration()),
                addresses: addresses?,
            })
        })
    }
}

/// Reads `"v1"` or `"v2"`.
fn read_proxy_protocol(field: Field<'_>, http2: bool) -> Option<ProxyProtocolVersion> {
    let choices = [
        ("v1", ProxyProtocolVersion::V1),
        ("v2", ProxyProtocolVersion::V2),
    ];
    let version = field.one_of(&choices)?;
    if http2 {
        return field.fail(
            "conflicting_fields",
            "is for HTTP/1.1: an HTTP/2 connection carries requests of several clients",
        );
    }
    Some(version)
}

/// The prefix of an address that is the name of SRV records.
const SRV_SCHEME: &str = "srv://";

/// Reads `addresses`.
fn read_addresses(field: Field<'_>) -> Option<Vec<UpstreamAddress>> {
    let addresses = field.non_empty_array(UpstreamAddress::read)?;
    if addresses.len() > 1 && addresses.iter().any(|address| address.is_srv) {
        // The upstream itself is known, so that routes to it are no further mistakes.
        let _recorded: Option<()> = field.fail(
            "conflicting_fields",
            "an srv:// address must be the only one: the records have their own priorities and \
             weights",
        );
    }
    Some(addresses)
}

// === impl UpstreamAddress ===

impl UpstreamAddress {
    /// Reads `"host:port"`, `"srv://name"`, or `{ address = "host:port", weight = 2 }`.
    fn read(field: Field<'_>) -> Option<Self> {
        if let Some(text) = field.if_string(Self::schema) {
            return Self::parse(text, 1).or_else(|| field.fail("invalid_format", Self::FORMAT));
        }
        if !matches!(field.value(), Value::Object(_)) {
            let detail = format!("{}, or a table with address and weight", Self::FORMAT);
            return field.fail("invalid_type", detail);
        }
        field.object(|table| {
            let weight = table.optional("weight", |field| field.integer(0..=1000));
            let address = table.required("address", |field| {
                Self::parse(field.string_as(Self::schema)?, weight.unwrap_or(1))
                    .or_else(|| field.fail("invalid_format", Self::FORMAT))
            })?;
            if address.is_srv && table.has("weight") {
                table.fail_at(
                    "weight",
                    "conflicting_fields",
                    "SRV records have their own weights",
                );
            }
            Some(address)
        })
    }

    fn schema() -> serde_json::Value {
        let pattern = "^(srv://[A-Za-z0-9_.-]+|.+:[0-9]+)$";
        json!({ "type": "string", "pattern": pattern })
    }

    const FORMAT: &str = "must be an address such as 127.0.0.1:8501, auth.internal:8501 or \
                          srv://_http._tcp.auth.internal";

    /// Parses `host:port` or `srv://name`.
    #[must_use]
    pub fn parse(text: &str, weight: u32) -> Option<Self> {
        if let Some(name) = text.strip_prefix(SRV_SCHEME) {
            return is_dns_name(name).then(|| Self {
                host: name.to_owned(),
                port: 0,
                weight,
                is_srv: true,
            });
        }
        let (host, port) = text.rsplit_once(':')?;
        if !crate::message::head::is_authority(text.as_bytes()) || host.is_empty() {
            return None;
        }
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Some(Self {
            host,
            port: port.parse().ok().filter(|port| *port > 0)?,
            weight,
            is_srv: false,
        })
    }

    /// Returns the name that a certificate of the address must have, unless another one is
    /// configured. For SRV records it is the domain of the service: the names of its targets come
    /// from DNS, which is not authenticated (RFC 6125 section 6.2.1).
    #[must_use]
    pub fn server_name(&self) -> &str {
        let mut name = self.host.as_str();
        while self.is_srv
            && let Some((label, domain)) = name.split_once('.')
            && label.starts_with('_')
        {
            name = domain;
        }
        name.strip_suffix('.')
            .filter(|_| self.is_srv)
            .unwrap_or(name)
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_srv, self.host.contains(':')) {
            (true, _) => write!(f, "{SRV_SCHEME}{}", self.host),
            (false, true) => write!(f, "[{}]:{}", self.host, self.port),
            (false, false) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Returns whether the text is a DNS name (RFC 1035 section 2.3.4), with underscores.
fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(allowed)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    name.len() <= 253 && name.split('.').all(is_label)
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
            certificate: path("certificate"),
            key: path("key"),
        };
        if tls.certificate.is_some() != tls.key.is_some() {
            section.fail("missing_field", "certificate and key go together");
        }
        Some(tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let parse = |text| UpstreamAddress::parse(text, 1);
        for (text, host, port, is_srv) in [
            ("127.0.0.1:80", "127.0.0.1", 80, false),
            ("[::1]:80", "::1", 80, false),
            ("name.internal:80", "name.internal", 80, false),
            (
                "srv://_http._tcp.a.internal",
                "_http._tcp.a.internal",
                0,
                true,
            ),
            ("srv://a.service.consul.", "a.service.consul.", 0, true),
        ] {
            let address = parse(text).expect(text);
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.is_srv, is_srv);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "srv://",
            "srv://a..b",
            "srv://a:80",
            "srv://a/b",
            "a",
            "a:0",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn certificate_name_of_srv_records_is_their_domain() {
        for (text, name) in [
            ("srv://_http._tcp.a.internal", "a.internal"),
            ("srv://_http._tcp.a.internal.", "a.internal"),
            ("srv://a.service.consul", "a.service.consul"),
            ("_a.internal:80", "_a.internal"),
        ] {
            let address = UpstreamAddress::parse(text, 1).expect(text);
            assert_eq!(address.server_name(), name);
        }
    }
}
