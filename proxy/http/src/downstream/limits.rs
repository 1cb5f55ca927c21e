//! Limits on client connections and their requests.

use std::net::IpAddr;
use std::time::Duration;

use postern_core::network::IpNetworks;

use crate::message::head::HeadLimits;

/// Maximum bytes that a response buffers while its reader is slow.
pub const RESPONSE_BUFFER_BYTES: usize = 64 << 10;

/// Limits on client connections and their requests. None can be disabled.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Limits of a request head: default 32 KiB, 100 fields, 8 KiB of target.
    pub head: HeadLimits,
    /// Time from the first byte of a head (for the first request: from the connection) to its last
    /// byte; default 10 s.
    pub head_timeout: Duration,
    /// Time for which a connection may be idle between requests; default 60 s.
    pub idle_timeout: Duration,
    /// Time for which a tunnel (WebSocket) may transfer nothing in either direction; default 10
    /// min.
    pub tunnel_timeout: Duration,
    /// Minimum transfer rate of a body in bytes per second, for sending and for reading; default
    /// 512.
    pub min_rate: u32,
    /// Time for which a body may stay below `min_rate`; default 20 s.
    pub stall_timeout: Duration,
    /// Maximum bytes of responses that are buffered for slow readers; default 256 MiB. The readers
    /// of one address may use an eighth of it. A response reserves 64 KiB. Above the
    /// limit, new requests get 503, and a response whose reader is slow is aborted.
    pub response_buffer_bytes: usize,
    /// The deadline of a request until another is set; default 60 s.
    pub deadline: Duration,
    /// Reverse proxies in front of the gateway, whose connections carry requests of many clients;
    /// default none.
    pub trusted_proxies: IpNetworks,
}

impl HttpLimits {
    /// Returns the bytes of a body that must be transferred per `stall_timeout` at the minimum
    /// rate; at least 1.
    pub(crate) fn min_bytes_per_window(&self) -> u64 {
        let window_ms = u64::try_from(self.stall_timeout.as_millis()).unwrap_or(u64::MAX);
        (u64::from(self.min_rate).saturating_mul(window_ms) / 1000).max(1)
    }

    /// Returns the bytes that a client at the minimum rate accepts in a window, or in one second if
    /// that is longer, to avoid a flood of small frames.
    pub(crate) fn bytes_at_min_rate(&self) -> u64 {
        self.min_bytes_per_window().max(self.min_rate.into())
    }

    /// Returns whether the address is a trusted proxy, whose connections carry requests of many
    /// clients.
    pub fn is_trusted_proxy(&self, address: IpAddr) -> bool {
        self.trusted_proxies.contains(address)
    }
}
