//! `[limits]`: limits on clients.

use std::sync::Arc;
use std::time::Duration;

use postern_core::network::IpNetwork;
use postern_core::settings;
use postern_http::downstream::HttpLimits;
use postern_http::message::head::HeadLimits;
use strum::IntoStaticStr;

use crate::config::{RouteSettings, memory_size, nonzero_duration};
use crate::rate_limiter::Rate;

settings! {
    /// Limits for clients.
    ///
    /// Every limit has a default and none can be disabled, except the rate limits, which are off
    /// until they are set.
    #[derive(Clone, Debug)]
    pub struct ClientLimits(table) {
        /// Open connections; further ones wait in the accept queue. Read at start.
        pub connections: usize = 20_000 => |field| field.integer(1..=1_000_000),
        /// Open connections of a client address; further ones are closed.
        pub connections_per_address: usize = 1000 => |field| field.integer(1..=1_000_000),
        /// Concurrent streams of an HTTP/2 connection.
        pub streams: u32 = 100 => |field| field.integer(1..=10_000),
        /// The limits of each connection and its requests. The deadline is that of `[defaults]`, until
        /// the route of a request is known.
        pub http: Arc<HttpLimits> = (read_http(table).map(Arc::new)),
        /// Rate limit of a client address (/64 for IPv6); rejected heads count.
        pub address: Option<Rate> = None
            => |field| field.object(read_rate).map(|(rate, ..)| rate),
    }
}

settings! {
    fn read_http(table) -> HttpLimits {
        /// Request head; more is 431.
        head_bytes = "32KiB" => memory_size,
        /// Header fields; more is 431.
        head_fields = 100 => |field| field.integer(8..=240),
        /// Request target; more is 414.
        target_bytes = "8KiB" => memory_size,
        /// From the first byte of a head to its last.
        ///
        /// For the first request from the connection.
        head_timeout = "10s" => nonzero_duration,
        /// Idle time of a connection between requests.
        idle_timeout = "60s" => nonzero_duration,
        /// Silence of a WebSocket in both directions.
        tunnel_timeout = "10m" => nonzero_duration,
        /// Minimum rate of a body that is sent or read.
        min_rate = 512 => |field| field.typed("bytes per second").integer(1..=1_000_000),
        /// Time below `min_rate`; over HTTP/2 up to twice that.
        stall_timeout = "20s" => nonzero_duration,
        /// Responses buffered for [slow readers](../manual/gateway.md#slow-readers); beyond half, one
        /// client address has an eighth. Read at start.
        ///
        /// A response reserves 64 KiB. Above the limit, new requests get 503, and a response whose
        /// reader is slow is aborted.
        response_buffer_bytes = "256MiB" => memory_size,
        /// Proxies whose `X-Forwarded-For` is accepted, and `postern-console`.
        trusted_proxies = [] => |field| field.array(IpNetwork::read),
    } => HttpLimits {
        head: HeadLimits {
            bytes: head_bytes,
            fields: head_fields,
            target: target_bytes,
            ambiguous_paths: false,
        },
        head_timeout,
        idle_timeout,
        tunnel_timeout,
        min_rate,
        stall_timeout,
        response_buffer_bytes,
        deadline: RouteSettings::built_in().deadline,
        trusted_proxies: trusted_proxies.into_iter().collect(),
    }
}

settings! {
    /// Reads `{ requests = 100, per = "1s", burst = 200 }`.
    fn read_rate(table) -> (Rate, u32, Duration) {
        /// Requests per window.
        requests => |field| field.integer(1..=10_000_000),
        /// Window.
        per = "1s" => nonzero_duration,
        /// Size of the token bucket.
        burst = None ("`requests`") => |field| field.integer(1..=10_000_000),
    } => (Rate::new(requests, per, burst), requests, per)
}

/// A rate limit of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// The key by which requests are counted.
    pub by: RateLimitKey,
    /// The token bucket.
    pub rate: Rate,
    /// Requests per window as configured.
    pub requests: u32,
    /// The window as configured.
    pub per: Duration,
}

settings! {
    /// Rate limit of a route.
    pub(super) fn read_rate_limit(table) -> RateLimit {
        /// One bucket per client address, per principal, or for the route.
        by => |field| field.one_of(&[
            ("address", RateLimitKey::Address),
            ("principal", RateLimitKey::Principal),
            ("route", RateLimitKey::Route),
        ]),
        rate = (read_rate(table)),
    } => {
        let (rate, requests, per) = rate;
        RateLimit { by, rate, requests, per }
    }
}

/// The key by which a rate limit counts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RateLimitKey {
    /// The client address (the /64 for IPv6).
    Address,
    /// The user or service.
    Principal,
    /// The route, for all its requests together.
    Route,
}

impl RateLimit {
    /// Returns whether every request that another limit refuses is refused by this one.
    pub(crate) fn is_at_most(&self, other: &Self) -> bool {
        self.by == other.by
            && self.per == other.per
            && self.requests <= other.requests
            && self.rate.burst <= other.rate.burst
    }
}

impl RateLimitKey {
    /// Returns the name in the configuration and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
