//! Rate limits of requests.

use std::net::IpAddr;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};
use pingora_proxy::Session;
use postern_core::problem::Rendered;
use postern_core::{Code, Problem};
use postern_http::message::host::{host_name, is_host_name};

use crate::admission::early_ends;
use crate::config::{ClientLimits, RateLimitKey, Route};
use crate::downstream::session_ext::SessionExt;
use crate::rate_limiter::{Rate, RateExceeded};
use crate::state::GatewayState;
use crate::state::request_context::ReceivedRequest;
use crate::telemetry::metrics::NO_ROUTE;

/// Salts that keep the keys of different limits apart.
const ADDRESS_SALT: u64 = 1;
const ROUTE_SALT: u64 = 16;

/// Returns the client of a request that `peer` has sent; `None` if a trusted proxy does not know it.
pub(crate) fn client_address(
    limits: &ClientLimits,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let peer = peer?;
    if !limits.http.is_trusted_proxy(peer) {
        return Some(peer);
    }
    let client = limits.http.trusted_proxies.forwarded_client(peer, headers);
    (client.is_known && !limits.http.is_trusted_proxy(client.address)).then_some(client.address)
}

/// Determines the client address and whether the client uses TLS, also behind trusted proxies.
pub(crate) fn identify_client(
    state: &GatewayState,
    client: &Session,
    request: &mut ReceivedRequest,
) {
    request.is_tls = client.is_tls();
    request.client_address = client.peer_address();
    let limits = &request.config.limits;
    let peer = request.client_address;
    if let Some(peer) = peer.filter(|peer| limits.http.is_trusted_proxy(*peer)) {
        let headers = &client.req_header().headers;
        // Of several, the first is that of the client.
        let schemes = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
        let first = schemes.and_then(|schemes| schemes.split(|byte| *byte == b',').next());
        request.is_tls |= first.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"https"));
        let mut hosts = headers.get_all("x-forwarded-host").iter();
        let host = hosts.next().filter(|_| hosts.next().is_none());
        let host = host.filter(|host| {
            let host = host.to_str().map(host_name).unwrap_or_default();
            is_host_name(host.as_bytes()) && request.config.route_table.accepts_host(&host)
        });
        let forwarded = limits.http.trusted_proxies.forwarded_client(peer, headers);
        request.forwarded_host = host.cloned();
        request.client_address = Some(forwarded.address);
        request.is_client_known = forwarded.is_known;
    }
    if let Some(address) = request.client_address {
        request.client_key = state.address_key(address, ADDRESS_SALT);
    }
    if let Some(deadline) = client.deadline() {
        deadline.set_client_share(request.client_share());
    }
}

/// Applies the limit of requests that end early and would end streams of a shared HTTP/2 connection
/// to an upstream, and `limits.address`.
pub(crate) fn check_address(
    state: &GatewayState,
    request: &ReceivedRequest,
) -> Result<(), Problem> {
    let Some(address) = request.client_address else {
        return Ok(());
    };
    let route = request.matched_route();
    let is_http2 = route.is_some_and(|route| request.config.is_http2(route));
    if is_http2 && early_ends::is_exceeded(state, address) {
        return Err(Problem::new(Code::RateLimited).retry_after(1));
    }
    match request.config.limits.address {
        Some(rate) => {
            let (key, now) = (request.client_key, request.started);
            take_token(state, request.route_name(), "address", rate, (key, now))
        }
        None => Ok(()),
    }
}

/// Applies `limits.address` to a rejected head. Returns the code and the response: those of
/// `problem`, or 429 if the limit is exceeded. `client` is `None` if it is not known.
pub(crate) fn reject_head(
    state: &GatewayState,
    limits: &ClientLimits,
    client: Option<IpAddr>,
    problem: &Problem,
    request_id: &str,
) -> (Code, Rendered) {
    let exceeded = limits.address.zip(client).and_then(|(rate, client)| {
        let at = (state.address_key(client, ADDRESS_SALT), Instant::now());
        take_token(state, NO_ROUTE, "address", rate, at).err()
    });
    let problem = exceeded.as_ref().unwrap_or(problem);
    (problem.code(), problem.render(request_id))
}

pub(crate) fn check_route(
    state: &GatewayState,
    route: &Route,
    request: &ReceivedRequest,
) -> Result<(), Problem> {
    for (index, limit) in route.settings.limits.iter().enumerate() {
        let salt = state.key_seed.hash_one((ROUTE_SALT, &route.name, index));
        let key = match limit.by {
            RateLimitKey::Address => request
                .client_address
                .map(|address| state.address_key(address, salt)),
            RateLimitKey::Principal => principal_key(state, request, salt),
            RateLimitKey::Route => Some(salt),
        };
        if let Some(key) = key {
            // The clock is read again, because token verification may have waited for keys.
            let at = (key, Instant::now());
            take_token(state, &route.name, limit.by.as_str(), limit.rate, at)?;
        }
    }
    Ok(())
}

fn principal_key(state: &GatewayState, request: &ReceivedRequest, salt: u64) -> Option<u64> {
    let caller = request.caller.as_ref()?;
    let key = (caller.issuer(), caller.subject(), salt);
    Some(state.key_seed.hash_one(key))
}

/// Takes a token for a key, and rejects the request to a route if none is left.
fn take_token(
    state: &GatewayState,
    route: &str,
    limit: &'static str,
    rate: Rate,
    (key, now): (u64, Instant),
) -> Result<(), Problem> {
    let taken = state.limiter.take(rate, key, state.monotonic_ns(now));
    taken.map_err(|RateExceeded { retry_after }| {
        let rejected = &state.metrics.rate_limits.rejected;
        rejected.with_label_values(&[route, limit]).inc();
        // Rounded up, so that a client that waits for it is not too early.
        let seconds = retry_after.as_nanos().div_ceil(1_000_000_000);
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        Problem::new(Code::RateLimited).retry_after(seconds)
    })
}
