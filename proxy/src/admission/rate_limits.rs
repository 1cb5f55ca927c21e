//! Rate limits of requests.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora_proxy::Session;
use postern_core::network::{ForwardedClient, client_limit_key};
use postern_core::problem::Rendered;
use postern_core::{Code, Problem};
use postern_store::cache::Cache;
use sha2::{Digest, Sha256};

use crate::admission::early_ends;
use crate::admission::report_only::{self, DryRun};
use crate::config::{ClientLimits, ForwardedHeader, GatewayRateLimit, RateLimitKey, Route};
use crate::downstream::session_ext::SessionExt;
use crate::message::host::{host_name, is_host_name};
use crate::rate_limiter::{Rate, RateDecision};
use crate::state::GatewayState;
use crate::state::request_context::{RateLimitStatus, RequestContext};
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

    fn route(name: &'static str, report_only: bool) -> Self {
        Self {
            name,
            is_route_limit: true,
            report_only,
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
    match limits.forwarded_header {
        ForwardedHeader::XForwardedFor => limits
            .trusted_proxies
            .client_of_x_forwarded_for(peer, headers),
        ForwardedHeader::Forwarded => limits.trusted_proxies.client_of_forwarded(peer, headers),
    }
}

/// Determines the client address and whether the client uses TLS, also behind trusted proxies.
pub(crate) fn identify_client(client: &Session, ctx: &mut RequestContext) {
    ctx.is_tls = client.is_tls();
    let peer = client.peer_address();
    ctx.client_address = peer;
    let limits = &ctx.config.limits;
    let Some(peer) = peer.filter(|peer| limits.is_trusted_proxy(*peer)) else {
        return;
    };
    let headers = &client.req_header().headers;
    if limits.forwarded_header == ForwardedHeader::XForwardedFor {
        // Of several, the first is that of the client.
        let schemes = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
        let first = schemes.and_then(|schemes| schemes.split(|byte| *byte == b',').next());
        ctx.is_tls |= first.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"https"));
    }
    let mut hosts = headers.get_all("x-forwarded-host").iter();
    let host = hosts.next().filter(|_| hosts.next().is_none());
    let host = host.filter(|host| {
        let host = host.to_str().map(host_name).unwrap_or_default();
        is_host_name(host.as_bytes()) && ctx.config.route_table.accepts_host(&host)
    });
    let forwarded = forwarded_client(limits, peer, headers);
    ctx.forwarded_host = host.cloned();
    ctx.is_tls |= forwarded.is_https;
    ctx.client_address = Some(forwarded.address);
    ctx.is_client_known = forwarded.is_known;
    if let Some(deadline) = client.deadline() {
        deadline.set_forwarded_client(ctx.client_address.filter(|_| ctx.is_client_known));
    }
}

/// Applies the limit of requests that end early and would end streams of a shared HTTP/2 connection
/// to an upstream, and `limits.address`.
pub(crate) fn check_address(state: &GatewayState, ctx: &mut RequestContext) -> Result<(), Problem> {
    let Some(address) = ctx.client_address else {
        return Ok(());
    };
    ctx.client_key = state.address_key(address, ADDRESS_SALT);
    let is_http2 = ctx.route().is_some_and(|route| ctx.config.is_http2(route));
    if is_http2 && early_ends::is_exceeded(state, address) {
        return Err(Problem::new(Code::RateLimited).retry_after(1));
    }
    match ctx.config.limits.address {
        Some(limit) => take_token(
            state,
            ctx,
            LimitScope::gateway("address", limit.report_only),
            limit.rate,
            ctx.client_key,
            ctx.started,
        ),
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
            report_only::count_rate_limit(state, NO_ROUTE, "address");
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
    ctx: &mut RequestContext,
) -> Result<(), Problem> {
    match (
        ctx.config.limits.principal,
        principal_key(state, ctx, PRINCIPAL_SALT),
    ) {
        // The clock is read again, because token verification may have waited for keys.
        (Some(limit), Some(key)) => take_token(
            state,
            ctx,
            LimitScope::gateway("principal", limit.report_only),
            limit.rate,
            key,
            Instant::now(),
        ),
        _ => Ok(()),
    }
}

/// Applies the limits of the route.
pub(crate) async fn check_route(
    state: &GatewayState,
    route: &Route,
    ctx: &mut RequestContext,
) -> Result<(), Problem> {
    for (index, limit) in route.settings.limits.iter().enumerate() {
        let store = ctx.config.rate_limit_store.clone().filter(|_| limit.global);
        if let Some(store) = store
            && let Some(counted) = count_in_store(state, ctx, &store, route, index).await
        {
            counted?;
            continue;
        }
        let salt = state.key_seed.hash_one((ROUTE_SALT, &route.name, index));
        let key = match limit.by {
            RateLimitKey::Address => ctx
                .client_address
                .map(|address| state.address_key(address, salt)),
            RateLimitKey::Principal => principal_key(state, ctx, salt),
            RateLimitKey::Route => Some(salt),
        };
        if let Some(key) = key {
            take_token(
                state,
                ctx,
                LimitScope::route(limit.by.as_str(), limit.report_only),
                limit.rate,
                key,
                Instant::now(),
            )?;
        }
    }
    Ok(())
}

/// Counts the request across gateways, in fixed windows of the store. Returns `None` if the store
/// is unavailable; the caller then counts locally. Once a window is exhausted, the store is not
/// queried again until it ends.
async fn count_in_store(
    state: &GatewayState,
    ctx: &mut RequestContext,
    store: &Cache,
    route: &Route,
    index: usize,
) -> Option<Result<(), Problem>> {
    let limit = &route.settings.limits[index];
    // All gateways, whatever their release, must compute the same key.
    let counted_for = match limit.by {
        RateLimitKey::Address => client_limit_key(ctx.client_address?).to_string(),
        RateLimitKey::Principal => ctx
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
    if limit.report_only {
        if counted > max_requests {
            report_only::record(state, ctx, DryRun::RateLimit(limit.by.as_str()));
        }
        return Some(Ok(()));
    }
    let status = RateLimitStatus {
        name: limit.by.as_str(),
        limit: limit.requests,
        window_s: round_up_seconds(limit.per).max(1),
        remaining: u32::try_from(max_requests.saturating_sub(counted)).unwrap_or(0),
        reset_s: left_ms.div_ceil(1000),
        is_route_limit: true,
    };
    announce(ctx, status);
    Some(if counted > max_requests {
        count_rejected(state, ctx, limit.by.as_str());
        Err(rate_limited(Duration::from_millis(left_ms)))
    } else {
        Ok(())
    })
}

fn principal_key(state: &GatewayState, ctx: &RequestContext, salt: u64) -> Option<u64> {
    ctx.caller.as_ref().map(|caller| {
        state
            .key_seed
            .hash_one((caller.issuer(), caller.subject(), salt))
    })
}

fn take_token(
    state: &GatewayState,
    ctx: &mut RequestContext,
    scope: LimitScope,
    rate: Rate,
    key: u64,
    now: Instant,
) -> Result<(), Problem> {
    let verdict = state.limiter.take(rate, key, state.monotonic_ns(now));
    if scope.report_only {
        if matches!(verdict, RateDecision::Refused { .. }) {
            report_only::record(state, ctx, DryRun::RateLimit(scope.name));
        }
        return Ok(());
    }
    announce(ctx, limit_status(rate, verdict, scope));
    match verdict {
        RateDecision::Allowed { .. } => Ok(()),
        RateDecision::Refused { retry_after } => {
            count_rejected(state, ctx, scope.name);
            Err(rate_limited(retry_after))
        }
    }
}

/// Keeps the status of the limit with the fewest remaining requests, for the response.
fn announce(ctx: &mut RequestContext, status: RateLimitStatus) {
    if ctx
        .rate_limit
        .is_none_or(|known| status.remaining <= known.remaining)
    {
        ctx.rate_limit = Some(status);
    }
}

fn count_rejected(state: &GatewayState, ctx: &RequestContext, limit: &str) {
    let route = ctx.route().map_or(NO_ROUTE, |route| route.name.as_str());
    state.metrics.rate_limits.count_rejected(route, limit);
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
        is_route_limit: scope.is_route_limit,
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
