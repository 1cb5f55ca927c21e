//! `[[listen]]`: listening addresses and their TLS settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use postern_core::decode::{Field, Object, Value};
use postern_core::network::{IpNetwork, IpNetworks};

use crate::config::{AccessList, ListenerTlsConfig};

/// `[[listen]]`: a listening address for clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// IP address and port.
    pub address: SocketAddr,
    /// The peer addresses whose connections are accepted; default all. Changed by a reload.
    pub access: Option<AccessList>,
    /// The load balancers whose connections begin with a PROXY protocol header; default none.
    pub proxy_protocol: Option<IpNetworks>,
    /// TLS settings; plain HTTP without.
    pub tls: Option<ListenerTlsConfig>,
    /// Whether clients without TLS may use HTTP/2 with prior knowledge (RFC 9113 section 3.3);
    /// default false.
    pub h2c: bool,
    /// The port to which every request of this listener is redirected by HTTPS; default none. For
    /// listeners without TLS.
    pub redirect_to_https: Option<u16>,
}

/// The port of `https` URLs without a port.
pub(crate) const DEFAULT_HTTPS_PORT: u16 = 443;

/// `[access_log]`: the destination of access events, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The destination; default `stdout`.
    pub to: AccessLogSink,
    /// Detail of the client address in an event; default none.
    pub client_address: ClientAddressDetail,
}

/// A destination of access events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogSink {
    /// Disabled.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, which is reopened on SIGUSR1.
    File(PathBuf),
}

/// Detail in which client addresses are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddressDetail {
    /// Not logged.
    Off,
    /// The /24 (IPv4) or /48 (IPv6) network.
    Network,
    /// The full address.
    Full,
}

// === impl ListenerConfig ===

impl ListenerConfig {
    /// Returns the settings that a reload does not change.
    pub(crate) fn without_access(&self) -> Self {
        Self {
            access: None,
            ..self.clone()
        }
    }

    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let address = section.required("address", |field| field.socket_addr());
        let tls = section.section("tls", ListenerTlsConfig::read);
        let h2c = section.or("h2c", false, |field| match field.boolean()? {
            true if tls.is_some() => field.fail(
                "invalid_choice",
                "is for listeners without TLS: with it, HTTP/2 is tls.http2",
            ),
            h2c => Some(h2c),
        });
        let redirect = section.optional("redirect_to_https", |field| {
            let port = read_https_port(field)?;
            if port.is_some() && tls.is_some() {
                return field.fail("invalid_choice", "is for listeners without TLS");
            }
            port
        });
        Some(Self {
            address: address?,
            access: section.section("access", AccessList::read),
            proxy_protocol: section.section("proxy_protocol", |section| {
                let from = section.required("from", |field| field.non_empty_array(IpNetwork::read));
                from.map(|networks| networks.into_iter().collect())
            }),
            tls,
            h2c,
            redirect_to_https: redirect,
        })
    }
}

/// Reads `true`, or `{ port = 8443 }`. Returns `Some(None)` for `false`.
fn read_https_port(field: Field<'_>) -> Option<Option<u16>> {
    if !matches!(field.value(), Value::Object(_)) {
        let is_on = field.boolean()?;
        return Some(is_on.then_some(DEFAULT_HTTPS_PORT));
    }
    field.object(|section| {
        let port = section.or("port", DEFAULT_HTTPS_PORT, |field| field.integer(1..=65535));
        Some(Some(port))
    })
}

// === impl AccessLogConfig ===

impl AccessLogConfig {
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        let to = section.or("to", default.to, |field| {
            match field.text(1..=4096)?.as_str() {
                "off" => Some(AccessLogSink::Off),
                "stdout" => Some(AccessLogSink::Stdout),
                "stderr" => Some(AccessLogSink::Stderr),
                path if path.contains('/') => Some(AccessLogSink::File(path.into())),
                _ => field.fail(
                    "invalid_choice",
                    "must be off, stdout, stderr or a path with a slash",
                ),
            }
        });
        let choices = [
            ("off", ClientAddressDetail::Off),
            ("network", ClientAddressDetail::Network),
            ("full", ClientAddressDetail::Full),
        ];
        let client_address = section.or("client_address", default.client_address, |f| {
            f.one_of(&choices)
        });
        Some(Self { to, client_address })
    }
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self {
            to: AccessLogSink::Stdout,
            client_address: ClientAddressDetail::Off,
        }
    }
}
