//! HTTP/2 streams that end early, by reset or as malformed, counted by client over all connections;
//! also the streams to upstreams that an HTTP/1.1 client ends by disconnecting.
//!
//! Such streams cost the gateway and its upstreams more than the client. A connection with streams of
//! one client is closed for too many of them; the connection of a trusted proxy is shared by many
//! clients, so that the streams of the one client are refused instead.

use std::net::IpAddr;
use std::time::Instant;

use crate::rate_limiter::Rate;
use crate::state::GatewayState;

/// Early ends of one client: 200 at once, then 20 a second. A page that is left cancels some hundred
/// requests, and several people may share an address.
const EARLY_END_RATE: Rate = Rate {
    burst: 200,
    interval_ns: 50_000_000,
};

/// Keeps the keys apart from those of rate limits.
const EARLY_END_SALT: u64 = 48;

/// Records a stream that has ended early.
pub(crate) fn note(state: &GatewayState, client: IpAddr) {
    let key = state.address_key(client, EARLY_END_SALT);
    let now = state.monotonic_ns(Instant::now());
    let _counted = state.limiter.take(EARLY_END_RATE, key, now);
}

/// Returns whether further streams of the client are refused for now.
pub(crate) fn is_exceeded(state: &GatewayState, client: IpAddr) -> bool {
    let key = state.address_key(client, EARLY_END_SALT);
    let now = state.monotonic_ns(Instant::now());
    state.limiter.is_empty(EARLY_END_RATE, key, now)
}
