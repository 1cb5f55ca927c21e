//! `[dns]`: look-ups of the names of upstreams.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use postern_core::decode::{Field, Object};

use crate::config::nonzero_duration;

/// `[dns]`: look-ups of the names of upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The name servers; default those of `/etc/resolv.conf`. With this setting, neither its search
    /// domains nor its options apply.
    pub servers: Option<Vec<SocketAddr>>,
    /// Time for one query to one server; default 2 s. A query is sent up to three times.
    pub timeout: Duration,
    /// Minimum time for which an answer is used, even if its TTL is shorter; default 1 s.
    pub min_ttl: Duration,
    /// Maximum time for which an answer is used, even if its TTL is longer; default 5 min.
    pub max_ttl: Duration,
}

/// The port of name servers (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;

// === impl DnsConfig ===

impl DnsConfig {
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        let min_ttl = section.or("min_ttl", default.min_ttl, nonzero_duration);
        let max_ttl =
            section.or(
                "max_ttl",
                default.max_ttl.max(min_ttl),
                |field| match nonzero_duration(field)? {
                    max_ttl if max_ttl < min_ttl => {
                        field.fail("out_of_range", "must not be less than min_ttl")
                    }
                    max_ttl => Some(max_ttl),
                },
            );
        Some(Self {
            servers: section.optional("servers", |field| field.non_empty_array(read_server)),
            timeout: section.or("timeout", default.timeout, nonzero_duration),
            min_ttl,
            max_ttl,
        })
    }
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            servers: None,
            timeout: Duration::from_secs(2),
            min_ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(300),
        }
    }
}

/// Reads an IP address, with or without a port.
fn read_server(field: Field<'_>) -> Option<SocketAddr> {
    let text = field.string()?;
    let with_default_port = || text.parse().ok().map(|ip: IpAddr| (ip, DNS_PORT).into());
    text.parse().ok().or_else(with_default_port).or_else(|| {
        field.fail(
            "invalid_format",
            "must be an IP address, such as 10.0.0.2 or 127.0.0.1:5353",
        )
    })
}
