//! `[[listen]]`: listening addresses and their TLS settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use postern_core::decode::{Field, Value};
use postern_core::network::{IpNetwork, IpNetworks};
use postern_core::settings;

use crate::config::{AccessList, ListenerTlsConfig};

settings! {
    /// A listening address for clients.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ListenerConfig(table) {
        /// IP address and port.
        pub address: SocketAddr => |field| field.socket_addr(),
        /// TLS; plain HTTP without it.
        pub tls: Option<ListenerTlsConfig> = None => |field| field.object(ListenerTlsConfig::read),
        /// HTTP/2 with prior knowledge (RFC 9113 section 3.3) without TLS.
        pub h2c: bool = false => |field| match field.boolean()? {
            true if matches!(tls, Some(Some(_))) => field.fail(
                "invalid_choice",
                "is for listeners without TLS: with it, HTTP/2 is tls.http2",
            ),
            h2c => Some(h2c),
        },
        /// [Redirect](../manual/gateway.md#redirects-and-fixed-responses) (308) to `https://`, unless a
        /// trusted proxy says `X-Forwarded-Proto: https`.
        ///
        /// The port of the target. For listeners without TLS.
        pub redirect_to_https: Option<u16> = false => |field| {
            let port = read_https_port(field)?;
            if port.is_some() && matches!(tls, Some(Some(_))) {
                return field.fail("invalid_choice", "is for listeners without TLS");
            }
            Some(port)
        },
        /// Peer addresses that are accepted; with `proxy_protocol` source addresses. Applied by a
        /// reload.
        pub access: Option<AccessList> = None ("all") => |field| field.object(AccessList::read),
        /// PROXY protocol 1 and 2: connections begin with a header that names the client.
        pub proxy_protocol: Option<IpNetworks> = None => |field| field.object(read_balancers),
    }
}

settings! {
    fn read_balancers(table) -> IpNetworks {
        /// Load balancers that send it; their connections without a valid header are closed.
        from => |field| field.non_empty_array(IpNetwork::read),
    } => from.into_iter().collect()
}

settings! {
    fn read_redirect_port(table) -> u16 {
        /// Port of the target.
        port = 443 => |field| field.integer(1..=65535),
    } => port
}

/// The port of `https` URLs without a port.
pub(crate) const DEFAULT_HTTPS_PORT: u16 = 443;

settings! {
    /// One JSON object per request. Read at start.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AccessLogConfig(table) {
        /// Destination; a file is reopened on SIGUSR1.
        pub to: AccessLogSink = "stdout" => read_sink,
        /// How much of the client address is logged; `network` is the /24 or /48.
        pub client_address: ClientAddressDetail = "off" => |field| {
            field.one_of(&[
                ("off", ClientAddressDetail::Off),
                ("network", ClientAddressDetail::Network),
                ("full", ClientAddressDetail::Full),
            ])
        },
    }
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

/// Reads `true`, or `{ port = 8443 }`. Returns `Some(None)` for `false`.
fn read_https_port(field: Field<'_>) -> Option<Option<u16>> {
    if !matches!(field.value(), Value::Object(_)) {
        return Some(field.boolean()?.then_some(DEFAULT_HTTPS_PORT));
    }
    field.object(read_redirect_port).map(Some)
}

fn read_sink(field: Field<'_>) -> Option<AccessLogSink> {
    let field = field.typed("`off`, `stdout`, `stderr`, path");
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
}
