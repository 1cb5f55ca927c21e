//! Rate limits of requests.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora_proxy::Session;
use postern_core::network::{ForwardedClient, client_limit_key};
use postern_core::problem::Rendered;
use postern_core::{Code, Problem};
use postern_http::message::host::{host_name, is_host_name};
use postern_store::cache::Cache;
use sha2::{Digest, Sha256};

use crate::admission::early_ends;
use crate::admission::report_only;
use crate::config::{
    ClientLimits, ForwardedHeader, GatewayRateLimit, RateLimit, RateLimitKey, Route,
};
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
const EXHAUSTED_SALT: u64 = 32;

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
    let client = forwarded_client(limits, peer, headers);
    (client.is_known && !limits.is_trusted_proxy(client.address)).then_some(client.address)
}

fn forwarded_client(limits: &ClientLimits, peer: IpAddr, headers: &HeaderMap) -> ForwardedClient {
    let trusted = &limits.http.trusted_proxies;
    match limits.forwarded_header {
        ForwardedHeader::XForwardedFor => trusted.client_of_x_forwarded_for(peer, headers),
        ForwardedHeader::Forwarded => trusted.client_of_forwarded(peer, headers),
    }
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
        if limits.forwarded_header == ForwardedHeader::XForwardedFor {
            // Of several, the first is that of the client.
            let schemes = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
            let first = schemes.and_then(|schemes| schemes.split(|byte| *byte == b',').next());
            request.is_tls |=
                first.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"https"));
        }
        let mut hosts = headers.get_all("x-forwarded-host").iter();
        let host = hosts.next().filter(|_| hosts.next().is_none());
        let host = host.filter(|host| {
            let host = host.to_str().map(host_name).unwrap_or_default();
            is_host_name(host.as_bytes()) && request.config.route_table.accepts_host(&host)
        });
        let forwarded = forwarded_client(limits, peer, headers);
        request.forwarded_host = host.cloned();
        request.is_tls |= forwarded.is_https;
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
pub(crate) async fn check_route(
    state: &GatewayState,
    route: &Route,
    request: &mut ReceivedRequest,
) -> Result<(), Problem> {
    for (index, limit) in route.settings.limits.iter().enumerate() {
        let store = request.config.rate_limit_store.clone();
        if let Some(store) = store.filter(|_| limit.global)
            && let Some(counted) = count_in_store(state, request, &store, route, index).await
        {
            counted?;
            continue;
        }
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

/// Counts the request across gateways, in fixed windows of the store. Returns `None` if the store
/// is unavailable; the caller then counts locally. Once a window is exhausted, the store is not
/// queried again until it ends.
async fn count_in_store(
    state: &GatewayState,
    request: &mut ReceivedRequest,
    store: &Cache,
    route: &Route,
    index: usize,
) -> Option<Result<(), Problem>> {
    let limit = &route.settings.limits[index];
    // All gateways, whatever their release, must compute the same key.
    let counted_for = match limit.by {
        RateLimitKey::Address => client_limit_key(request.client_address?).to_string(),
        RateLimitKey::Principal => request
            .caller
            .as_ref()
            .map(|caller| format!("{}|{}", caller.issuer(), caller.subject()))
            .unwrap_or_default(),
        RateLimitKey::Route => String::new(),
    };
    let digest = Sha256::digest(format!("{}\n{index}\n{counted_for}", route.name));
    let window_ms = i64::try_from(limit.per.as_millis())
        .unwrap_or(i64::MAX)
        .max(1);
    let now_ms = state.clock.now().0;
    let key = format!("limit:{}:{}", hex::encode(&digest[..8]), now_ms / window_ms);
    let left_ms = u64::try_from(window_ms - now_ms % window_ms).unwrap_or(0);
    let max_requests = u64::from(limit.requests);
    let (exhausted_key, now) = (
        state
            .key_seed
            .hash_one((EXHAUSTED_SALT, &key, max_requests)),
        state.monotonic_ns(Instant::now()),
    );
    let counted = if state.limiter.is_exhausted(exhausted_key, now) {
        max_requests + 1
    } else {
        let counted = store.increment(&key, limit.per.saturating_mul(2)).await;
        state.metrics.rate_limits.note_store(counted.is_ok());
        let counted = counted.ok()?;
        if counted >= max_requests {
            state.limiter.mark_exhausted(
                exhausted_key,
                now.saturating_add(left_ms.saturating_mul(1_000_000)),
                now,
            );
        }
        counted
    };
    let is_exceeded = counted > max_requests;
    let status = RateLimitStatus {
        name: limit.by.as_str(),
        limit: limit.requests,
        window_s: round_up_seconds(limit.per).max(1),
        remaining: u32::try_from(max_requests.saturating_sub(counted)).unwrap_or(0),
        reset_s: left_ms.div_ceil(1000),
        is_reported: true,
    };
    let retry_after = is_exceeded.then(|| Duration::from_millis(left_ms));
    Some(conclude(
        state,
        request,
        status,
        limit.report_only,
        retry_after,
    ))
}

fn principal_key(state: &GatewayState, request: &ReceivedRequest, salt: u64) -> Option<u64> {
    let caller = request.caller.as_ref()?;
    let key = (caller.issuer(), caller.subject(), salt);
    Some(state.key_seed.hash_one(key))
}

fn take_token(
    state: &GatewayState,
    request: &mut ReceivedRequest,
    scope: LimitScope,
    rate: Rate,
    key: u64,
    now: Instant,
) -> Result<(), Problem> {
    let verdict = state.limiter.take(rate, key, state.monotonic_ns(now));
    let retry_after = match verdict {
        RateDecision::Allowed { .. } => None,
        RateDecision::Refused { retry_after } => Some(retry_after),
    };
    let status = limit_status(rate, verdict, scope);
    conclude(state, request, status, scope.report_only, retry_after)
}

/// Rejects the request if it must be sent again after some time. The status of the limit with the
/// fewest remaining requests is kept for the response.
fn conclude(
    state: &GatewayState,
    request: &mut ReceivedRequest,
    status: RateLimitStatus,
    is_report_only: bool,
    retry_after: Option<Duration>,
) -> Result<(), Problem> {
    let least = request.rate_limit.map(|known| known.remaining);
    if !is_report_only && least.is_none_or(|least| status.remaining <= least) {
        request.rate_limit = Some(status);
    }
    let Some(retry_after) = retry_after else {
        return Ok(());
    };
    if !is_report_only {
        let metrics = &state.metrics.rate_limits;
        metrics.count_rejected(request.route_name(), status.name);
    }
    let record = |refused| report_only::record(state, request, refused);
    let refused = Err::<(), _>(rate_limited(retry_after));
    let verdict = Check::RateLimit(status.name).enforce(refused, is_report_only, record);
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
