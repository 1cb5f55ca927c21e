//! `[limits]`: limits on clients.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use postern_core::decode::{Field, Object};
use postern_core::network::IpNetwork;
use postern_http::downstream::HttpLimits;
use postern_http::message::head::HeadLimits;

use crate::config::{memory_size, nonzero_duration};
use crate::rate_limiter::Rate;

/// `[limits]`: limits on clients. Every limit has a default and none can be disabled, except the
/// rate limits, which are off until they are set.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Maximum open client connections; default 20,000. Connections above the limit wait in the
    /// kernel's accept queue. Read at startup only.
    pub connections: usize,
    /// Maximum open connections of one client address; default 1,000. Connections above the limit
    /// are closed.
    pub connections_per_address: usize,
    /// Maximum concurrent streams of one HTTP/2 connection; default 100.
    pub streams: u32,
    /// Rate limit of one client address; default none. Requests with a rejected head are counted as
    /// well.
    pub address: Option<Rate>,
    /// The limits of each connection and its requests. The deadline is that of `[defaults]`, until
    /// the route of a request is known.
    pub http: Arc<HttpLimits>,
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

/// The key by which a rate limit counts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitKey {
    /// The client address (the /64 for IPv6).
    Address,
    /// The user or service.
    Principal,
    /// The route, for all its requests together.
    Route,
}

// === impl RateLimit ===

impl RateLimit {
    /// Returns whether every request that another limit refuses is refused by this one.
    pub(crate) fn is_at_most(&self, other: &Self) -> bool {
        self.by == other.by
            && self.per == other.per
            && self.requests <= other.requests
            && self.rate.burst <= other.rate.burst
    }
}

// === impl RateLimitKey ===

impl RateLimitKey {
    /// Returns the name in the configuration and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Principal => "principal",
            Self::Route => "route",
        }
    }
}

// === impl ClientLimits ===

impl ClientLimits {
    /// Returns whether the address is a trusted proxy, whose connections carry requests of many
    /// clients.
    pub(crate) fn is_trusted_proxy(&self, address: IpAddr) -> bool {
        self.http.is_trusted_proxy(address)
    }

    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        Some(Self {
            connections: section.or("connections", default.connections, |f| {
                f.integer(1..=1_000_000)
            }),
            connections_per_address: section.or(
                "connections_per_address",
                default.connections_per_address,
                |field| field.integer(1..=1_000_000),
            ),
            streams: section.or("streams", default.streams, |field| {
                field.integer(1..=10_000)
            }),
            address: section.section("address", read_rate).map(|(rate, ..)| rate),
            http: Arc::new(read_http(section)),
        })
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            connections_per_address: 1_000,
            streams: 100,
            address: None,
            http: Arc::default(),
        }
    }
}

fn read_http(section: &Object<'_>) -> HttpLimits {
    let default = HttpLimits::default();
    HttpLimits {
        head: HeadLimits {
            bytes: section.or("head_bytes", default.head.bytes, memory_size),
            fields: section.or("head_fields", default.head.fields, |field| {
                field.integer(8..=240)
            }),
            target: section.or("target_bytes", default.head.target, memory_size),
            ambiguous_paths: false,
        },
        head_timeout: section.or("head_timeout", default.head_timeout, nonzero_duration),
        idle_timeout: section.or("idle_timeout", default.idle_timeout, nonzero_duration),
        tunnel_timeout: section.or("tunnel_timeout", default.tunnel_timeout, nonzero_duration),
        min_rate: section.or("min_rate", default.min_rate, |field| {
            field.integer(1..=1_000_000)
        }),
        stall_timeout: section.or("stall_timeout", default.stall_timeout, nonzero_duration),
        response_buffer_bytes: section.or(
            "response_buffer_bytes",
            default.response_buffer_bytes,
            memory_size,
        ),
        deadline: default.deadline,
        trusted_proxies: section
            .list("trusted_proxies", IpNetwork::read)
            .into_iter()
            .collect(),
    }
}

/// Reads `{ requests = 100, per = "1s", burst = 200 }`.
fn read_rate(section: &Object<'_>) -> Option<(Rate, u32, Duration)> {
    let requests = section.required("requests", |field| field.integer(1..=10_000_000));
    let per = section.or("per", Duration::from_secs(1), nonzero_duration);
    let burst = section.optional("burst", |field| field.integer(1..=10_000_000));
    requests.map(|requests| (Rate::new(requests, per, burst), requests, per))
}

impl RateLimit {
    pub(super) fn read(field: Field<'_>) -> Option<Self> {
        field.object(|limit| {
            let choices = [
                ("address", RateLimitKey::Address),
                ("principal", RateLimitKey::Principal),
                ("route", RateLimitKey::Route),
            ];
            let by = limit.required("by", |field| field.one_of(&choices));
            let (rate, requests, per) = read_rate(limit)?;
            Some(Self {
                by: by?,
                rate,
                requests,
                per,
            })
        })
    }
}
