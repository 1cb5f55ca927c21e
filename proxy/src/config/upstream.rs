use std::path::PathBuf;
use std::time::Duration;

use postern_common::decode::{Field, Object, Value};

use crate::config::nonzero_duration;

/// `[upstream.NAME]`: a service behind the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// The name that routes use.
    pub name: String,
    /// Where it is; at least one.
    pub addresses: Vec<UpstreamAddress>,
    /// How one of several is chosen; default the less loaded of two.
    pub balance: LoadBalancing,
    /// From the first packet to the connection, TLS included; default 2 s.
    pub connect_timeout: Duration,
    /// From the end of the request to the first byte of the response, and between any two reads
    /// after that; default 30 s.
    pub read_timeout: Duration,
    /// How long one write may take; default 30 s.
    pub write_timeout: Duration,
    /// How long an unused connection is kept; default 60 s.
    pub idle_timeout: Duration,
    /// Requests in flight to one address, those that still wait for their connection among them:
    /// above it, 503 at once, for nothing queues. While half of them are taken, one client address
    /// gets an eighth (a trusted proxy brings many clients, and is not bound by it). Default 1,024.
    pub in_flight: usize,
    /// Further attempts where a request was not sent or can be repeated; default 1.
    pub retries: u32,
    /// Retries of requests that were sent, in percent of requests, over which none is made; default
    /// 20.
    pub retry_budget: u32,
    /// Active health checks; default none.
    pub health: Option<HealthCheckConfig>,
    /// Passive ejection of addresses that fail; on by default.
    pub outlier: OutlierDetection,
    /// TLS to the upstream; default none.
    pub tls: Option<UpstreamTlsConfig>,
    /// Whether HTTP/2 is spoken to it; default false.
    pub http2: bool,
}

/// An IP address or DNS name with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// An IP address, or a name that is resolved in the background.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The share of requests, against that of the others; default 1.
    pub weight: u32,
}

/// How one of several addresses is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancing {
    /// Two at random, the one with less load (requests in flight times peak-sensitive latency).
    LeastLoaded,
    /// One after the other.
    RoundRobin,
    /// By client address, so that one client stays with one address.
    ClientHash,
}

/// `[upstream.NAME.health]`: active checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckConfig {
    /// What is tried.
    pub probe: HealthProbe,
    /// How often; default 5 s.
    pub interval: Duration,
    /// How long one may take; default 2 s.
    pub timeout: Duration,
    /// Failures in a row after which an address is out; default 2.
    pub failures: u32,
    /// Successes in a row after which it is back; default 2.
    pub successes: u32,
}

/// What an active check tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthProbe {
    /// A TCP connection.
    Tcp,
    /// `GET` of this path, answered with 200 to 399.
    Http(String),
}

/// `[upstream.NAME.outlier]`: passive ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierDetection {
    /// Failures in a row (no connection, a reset, a timeout, 502 to 504) that eject an address; 0
    /// switches it off; default 5.
    pub failures: u32,
    /// How long it stays out, times the number of ejections in a row; default 10 s.
    pub ejection: Duration,
    /// Percent of the addresses that may be out, ejected or failing their checks; above it, first
    /// attempts go to any of them. Where all are out they are used whatever stands here. Default
    /// 50.
    pub panic_percent: u32,
}

/// `[upstream.NAME.tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// The name in its certificate; default the host of the address.
    pub name: Option<String>,
    /// Authorities of its certificate, in PEM; default those of the machine.
    pub ca: Option<PathBuf>,
    /// The client certificate and its chain, in PEM.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
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
            let addresses = upstream.required("addresses", |field| {
                super::non_empty(field, UpstreamAddress::read)
            });
            let choices = [
                ("least-loaded", LoadBalancing::LeastLoaded),
                ("round-robin", LoadBalancing::RoundRobin),
                ("client-hash", LoadBalancing::ClientHash),
            ];
            Some(Self {
                name: name.to_owned(),
                balance: upstream.or("balance", LoadBalancing::LeastLoaded, |field| {
                    field.one_of(&choices)
                }),
                connect_timeout: upstream.or("connect_timeout", seconds(2), nonzero_duration),
                read_timeout: upstream.or("read_timeout", seconds(30), nonzero_duration),
                write_timeout: upstream.or("write_timeout", seconds(30), nonzero_duration),
                idle_timeout: upstream.or("idle_timeout", seconds(60), nonzero_duration),
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
}

impl UpstreamAddress {
    /// `"host:port"`, or `{ address = "host:port", weight = 2 }`.
    fn read(field: Field<'_>) -> Option<Self> {
        if let Value::String(text) = field.value() {
            return Self::parse(text, 1).or_else(|| field.fail("invalid_format", Self::FORMAT));
        }
        if !matches!(field.value(), Value::Object(_)) {
            let detail = format!("{}, or a table with address and weight", Self::FORMAT);
            return field.fail("invalid_type", detail);
        }
        field.object(|address| {
            let weight = address.or("weight", 1, |field| field.integer(0..=1000));
            address.required("address", |field| {
                Self::parse(field.string()?, weight)
                    .or_else(|| field.fail("invalid_format", Self::FORMAT))
            })
        })
    }

    const FORMAT: &str = "must be an address such as 127.0.0.1:8501 or auth.internal:8501";

    /// Reads `host:port`.
    #[must_use]
    pub fn parse(text: &str, weight: u32) -> Option<Self> {
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
        })
    }
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
