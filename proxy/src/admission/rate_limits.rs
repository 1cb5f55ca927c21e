//! Rate limits of requests.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora_proxy::Session;
use postern_core::problem::Rendered;
use postern_core::{Code, Problem};
use postern_http::message::host::{host_name, is_host_name};

use crate::admission::early_ends;
use crate::admission::report_only;
use crate::config::{ClientLimits, GatewayRateLimit, RateLimit, RateLimitKey, Route};
use crate::downstream::session_ext::SessionExt;
use crate::rate_limiter::{Rate, RateDecision};
use crate::routing::decision::{Check, DryRun};
use crate::state::GatewayState;
use crate::state::request_context::{RateLimitStatus, ReceivedRequest};
use crate::telemetry::metrics::NO_ROUTE;

/// Salts that keep the keys of different limits apart.
const ADDRESS_SALT: u64 = 1;
const PRINCIPAL_SALT: u64 = 2;
const ROUTE_SALT: u64 = 16;

/// The name of a rate limit in the `RateLimit` fields, and how it is applied.
#[derive(Clone, Copy)]
struct LimitScope {
    name: &'static str,
    is_route_limit: bool,
    /// Whether the limit rejects nothing.
    report_only: bool,
}

impl LimitScope {
    fn gateway(name: &'static str, report_only: bool) -> Self {
        Self {
            name,
            is_route_limit: false,
            report_only,
        }
    }

    fn route(limit: &RateLimit) -> Self {
        Self {
            name: limit.by.as_str(),
            is_route_limit: true,
            report_only: limit.report_only,
        }
    }
}

/// Returns the client of a request that `peer` has sent; `None` if a trusted proxy does not know it.
pub(crate) fn client_address(
    limits: &ClientLimits,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let peer = peer?;
    if !limits.is_trusted_proxy(peer) {
        return Some(peer);
    }
    let client = limits.http.trusted_proxies.forwarded_client(peer, headers);
    (client.is_known && !limits.is_trusted_proxy(client.address)).then_some(client.address)
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
    if let Some(peer) = peer.filter(|peer| limits.is_trusted_proxy(*peer)) {
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
        if let Some(deadline) = client.deadline() {
            deadline.set_forwarded_client(request.known_address());
        }
    }
    if let Some(address) = request.client_address {
        request.client_key = state.address_key(address, ADDRESS_SALT);
    }
}

/// Applies the limit of requests that end early and would end streams of a shared HTTP/2 connection
/// to an upstream, and `limits.address`.
pub(crate) fn check_address(
    state: &GatewayState,
    request: &mut ReceivedRequest,
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
        Some(GatewayRateLimit { rate, report_only }) => {
            let scope = LimitScope::gateway("address", report_only);
            let (key, now) = (request.client_key, request.started);
            take_token(state, request, scope, rate, key, now)
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
    if let (Some(GatewayRateLimit { rate, report_only }), Some(client)) = (limits.address, client) {
        let key = state.address_key(client, ADDRESS_SALT);
        let verdict = state
            .limiter
            .take(rate, key, state.monotonic_ns(Instant::now()));
        if report_only && matches!(verdict, RateDecision::Refused { .. }) {
            let (check, code) = (Check::RateLimit("address"), Code::RateLimited);
            report_only::count(state, NO_ROUTE, DryRun { check, code });
        } else if let RateDecision::Refused { retry_after } = verdict {
            let metrics = &state.metrics.rate_limits;
            metrics.count_rejected(NO_ROUTE, "address");
            let mut rendered = rate_limited(retry_after).render(request_id);
            for (name, value) in
                limit_status(rate, verdict, LimitScope::gateway("address", false)).header_fields()
            {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::try_from(name), HeaderValue::try_from(value))
                {
                    rendered.headers.insert(name, value);
                }
            }
            return (Code::RateLimited, rendered);
        }
    }
    (problem.code(), problem.render(request_id))
}

/// Applies `limits.principal`.
pub(crate) fn check_principal(
    state: &GatewayState,
    request: &mut ReceivedRequest,
) -> Result<(), Problem> {
    let key = principal_key(state, request, PRINCIPAL_SALT);
    match (request.config.limits.principal, key) {
        (Some(GatewayRateLimit { rate, report_only }), Some(key)) => {
            let scope = LimitScope::gateway("principal", report_only);
            // The clock is read again, because token verification may have waited for keys.
            take_token(state, request, scope, rate, key, Instant::now())
        }
        _ => Ok(()),
    }
}

/// Applies the limits of the route.
pub(crate) fn check_route(
    state: &GatewayState,
    route: &Route,
    request: &mut ReceivedRequest,
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
            let scope = LimitScope::route(limit);
            take_token(state, request, scope, limit.rate, key, Instant::now())?;
        }
    }
    Ok(())
}

fn principal_key(state: &GatewayState, request: &ReceivedRequest, salt: u64) -> Option<u64> {
    let caller = request.caller.as_ref()?;
    let key = (caller.issuer(), caller.subject(), salt);
    Some(state.key_seed.hash_one(key))
}

/// Takes a token, and rejects the request if none is left. The status of the limit with the fewest
/// remaining requests is kept for the response.
fn take_token(
    state: &GatewayState,
    request: &mut ReceivedRequest,
    scope: LimitScope,
    rate: Rate,
    key: u64,
    now: Instant,
) -> Result<(), Problem> {
    let verdict = state.limiter.take(rate, key, state.monotonic_ns(now));
    let status = limit_status(rate, verdict, scope);
    let least = request.rate_limit.map(|known| known.remaining);
    if !scope.report_only && least.is_none_or(|least| status.remaining <= least) {
        request.rate_limit = Some(status);
    }
    let RateDecision::Refused { retry_after } = verdict else {
        return Ok(());
    };
    if !scope.report_only {
        let metrics = &state.metrics.rate_limits;
        metrics.count_rejected(request.route_name(), status.name);
    }
    let record = |refused| report_only::record(state, request, refused);
    let refused = Err::<(), _>(rate_limited(retry_after));
    let verdict = Check::RateLimit(status.name).enforce(refused, scope.report_only, record);
    verdict.map(|_| ())
}

fn limit_status(rate: Rate, verdict: RateDecision, scope: LimitScope) -> RateLimitStatus {
    let (remaining, reset) = match verdict {
        RateDecision::Allowed { remaining } => (remaining, Duration::from_nanos(rate.interval_ns)),
        RateDecision::Refused { retry_after } => (0, retry_after),
    };
    let (limit, window_s) = (rate.burst, rate.window_s);
    RateLimitStatus {
        name: scope.name,
        limit,
        window_s,
        remaining,
        reset_s: round_up_seconds(reset),
        is_reported: scope.is_route_limit || matches!(verdict, RateDecision::Refused { .. }),
    }
}

fn rate_limited(retry_after: Duration) -> Problem {
    Problem::new(Code::RateLimited)
        .retry_after(u32::try_from(round_up_seconds(retry_after)).unwrap_or(u32::MAX))
}

/// Returns the duration in seconds, rounded up, so that a client that waits for it is not too
/// early.
fn round_up_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up() {
        for (nanos, whole) in [(0, 0), (1, 1), (1_000_000_000, 1), (1_000_400_000, 2)] {
            assert_eq!(
                round_up_seconds(Duration::from_nanos(nanos)),
                whole,
                "{nanos}"
            );
        }
    }
}
