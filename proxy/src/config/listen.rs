use std::net::SocketAddr;
use std::path::PathBuf;

use postern_common::decode::Object;

/// `[[listen]]`: where clients come in.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// Address and port.
    pub address: SocketAddr,
    /// TLS; plain HTTP without.
    pub tls: Option<ListenerTlsConfig>,
    /// Whether clients without TLS may begin with HTTP/2 (prior knowledge, RFC 9113 section 3.3);
    /// default false.
    pub h2c: bool,
}

/// `[listen.tls]`: files in PEM, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsConfig {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of which one must have signed the client's certificate; none is asked for
    /// without.
    pub client_ca: Option<PathBuf>,
    /// Whether HTTP/2 is offered besides HTTP/1.1; default true.
    pub http2: bool,
}

/// `[access_log]`: where access events go, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Default `stdout`.
    pub to: AccessLogSink,
    /// How much of the client's address an event holds; default nothing.
    pub client_address: ClientAddressDetail,
    /// Bytes after which a file is put aside as `….1`, in the place of the one before; default
    /// none, for a rotation from outside with SIGUSR1.
    pub max_bytes: Option<u64>,
    /// Bytes that wait for a slow disk before events are dropped and counted; default 8 MiB.
    pub buffer_bytes: usize,
}

/// A sink of access events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogSink {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, opened again on SIGUSR1.
    File(PathBuf),
}

/// How much of an address is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddressDetail {
    /// Nothing.
    Off,
    /// The /24 (IPv4) or /48 (IPv6).
    Network,
    /// All of it.
    Full,
}

// === impl ListenerConfig ===

impl ListenerConfig {
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
        Some(Self {
            address: address?,
            tls,
            h2c,
        })
    }
}

impl ListenerTlsConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let certificate = section.required("certificate", |field| field.text(1..=4096));
        let key = section.required("key", |field| field.text(1..=4096));
        let client_ca = section.optional("client_ca", |field| field.text(1..=4096));
        let http2 = section.or("http2", true, |field| field.boolean());
        Some(Self {
            certificate: certificate?.into(),
            key: key?.into(),
            client_ca: client_ca.map(PathBuf::from),
            http2,
        })
    }
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
        let buffer_bytes = section.or("buffer_bytes", default.buffer_bytes, super::memory_size);
        let max_bytes = section.optional("max_bytes", |field| match field.bytes()? {
            0 => field.fail("out_of_range", "must be more than 0"),
            bytes => Some(bytes),
        });
        Some(Self {
            to,
            client_address,
            max_bytes,
            buffer_bytes,
        })
    }
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self {
            to: AccessLogSink::Stdout,
            client_address: ClientAddressDetail::Off,
            max_bytes: None,
            buffer_bytes: 8 << 20,
        }
    }
}
