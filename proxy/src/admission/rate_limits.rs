//! Rate limits on the way of a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use postern_common::cache::Cache;
use postern_common::problem::Rendered;
use postern_common::{Code, Problem};

use crate::config::{Limits, RateBy, RateLimit, Route};
use crate::downstream::client_address;
use crate::downstream::client_exchange::Client;
use crate::rate_limiter::{Rate, Verdict};
use crate::state::State;
use crate::state::request_context::{Context, Quota};

/// Different limits never share a key.
const BY_ADDRESS: u64 = 1;
const BY_PRINCIPAL: u64 = 2;
const BY_ROUTE: u64 = 16;
const USED_UP: u64 = 32;

/// Finds out who the client is, and how it came.
pub(crate) fn recognise(client: &impl Client, ctx: &mut Context) {
    ctx.is_tls = client.is_tls();
    let peer = client.address();
    ctx.client = peer;
    let trusted = &ctx.live.limits.trusted_proxies;
    let Some(peer) = peer.filter(|peer| trusted.iter().any(|network| network.contains(*peer)))
    else {
        return;
    };
    let headers = &client.request().headers;
    let forwarded: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    ctx.client = Some(client_address::address(
        peer,
        forwarded.into_iter(),
        trusted,
    ));
    ctx.is_tls |= headers
        .get("x-forwarded-proto")
        .is_some_and(|scheme| scheme == "https");
}

/// The limit of `limits.address`.
pub(crate) fn by_address(state: &State, ctx: &mut Context) -> Result<(), Problem> {
    let Some(address) = ctx.client else {
        return Ok(());
    };
    ctx.client_key = state.address_key(address, BY_ADDRESS);
    match ctx.live.limits.address {
        Some(rate) => take(
            state,
            ctx,
            ("address", false),
            rate,
            (ctx.client_key, ctx.started),
        ),
        None => Ok(()),
    }
}

/// The refusal of a head that never became a request, with its code: it counts as one of its
/// sender's all the same, and who sends too many hears that instead. Behind a trusted proxy the
/// sender is not known, because such a head is not believed.
pub(crate) fn at_door(
    (state, limits): (&State, &Limits),
    sender: Option<IpAddr>,
    problem: &Problem,
    request_id: &str,
) -> (Code, Rendered) {
    let trusted = |address: &IpAddr| {
        limits
            .trusted_proxies
            .iter()
            .any(|network| network.contains(*address))
    };
    if let (Some(rate), Some(sender)) = (limits.address, sender.filter(|sender| !trusted(sender))) {
        let key = state.address_key(sender, BY_ADDRESS);
        let verdict = state.limiter.take(rate, key, state.nanos(Instant::now()));
        if let Verdict::Refused { retry_after } = verdict {
            let mut rendered = refused(retry_after).render(request_id);
            for (name, value) in quota(rate, verdict, ("address", false)).fields() {
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

/// The limit of `limits.principal`.
pub(crate) fn by_principal(state: &State, ctx: &mut Context) -> Result<(), Problem> {
    match (
        ctx.live.limits.principal,
        principal_key(state, ctx, BY_PRINCIPAL),
    ) {
        // The check of the token may have waited for keys, so that the clock is read anew.
        (Some(rate), Some(key)) => take(
            state,
            ctx,
            ("principal", false),
            rate,
            (key, Instant::now()),
        ),
        _ => Ok(()),
    }
}

/// The limits of the route itself.
pub(crate) async fn by_route(
    state: &State,
    route: &Route,
    ctx: &mut Context,
) -> Result<(), Problem> {
    for (at, limit) in route.limits.iter().enumerate() {
        let store = ctx.live.store.clone().filter(|_| limit.global);
        if let Some(store) = store
            && let Some(counted) = count(state, (&store, &route.name, at), limit, ctx).await
        {
            counted?;
            continue;
        }
        let salt = state.keys.hash_one((BY_ROUTE, &route.name, at));
        let key = match limit.by {
            RateBy::Address => ctx.client.map(|address| state.address_key(address, salt)),
            RateBy::Principal => principal_key(state, ctx, salt),
            RateBy::Route => Some(salt),
        };
        if let Some(key) = key {
            take(
                state,
                ctx,
                (name(limit.by), true),
                limit.rate,
                (key, Instant::now()),
            )?;
        }
    }
    Ok(())
}

/// Counts across gateways, in windows of the store. `None` when the store is away: then each
/// gateway counts for itself. Once a window is known to be used up, the store is not asked again
/// before it ends.
async fn count(
    state: &State,
    (store, route, at): (&Cache, &str, usize),
    limit: &RateLimit,
    ctx: &mut Context,
) -> Option<Result<(), Problem>> {
    // Every gateway must come to the same key, so that this hash has no seed of its own.
    let mut hasher = DefaultHasher::new();
    (route, at).hash(&mut hasher);
    match limit.by {
        RateBy::Address => client_address::counted(ctx.client?).hash(&mut hasher),
        RateBy::Principal => {
            ctx.caller
                .as_ref()
                .map(|caller| (caller.issuer(), caller.subject()))
                .hash(&mut hasher);
        }
        RateBy::Route => {}
    }
    let window_ms = i64::try_from(limit.per.as_millis())
        .unwrap_or(i64::MAX)
        .max(1);
    let now_ms = state.clock.now().0;
    let key = format!("limit:{:016x}:{}", hasher.finish(), now_ms / window_ms);
    let left_ms = u64::try_from(window_ms - now_ms % window_ms).unwrap_or(0);
    let most = u64::from(limit.requests);
    let (used_up, now) = (
        state.keys.hash_one((USED_UP, &key, most)),
        state.nanos(Instant::now()),
    );
    let counted = if state.limiter.exhausted(used_up, now) {
        most + 1
    } else {
        let counted = store
            .increment(&key, limit.per.saturating_mul(2))
            .await
            .ok()?;
        if counted >= most {
            state.limiter.exhaust(
                used_up,
                now.saturating_add(left_ms.saturating_mul(1_000_000)),
                now,
            );
        }
        counted
    };
    ctx.quota = Some(Quota {
        name: name(limit.by),
        most: limit.requests,
        window_s: seconds(limit.per).max(1),
        remaining: u32::try_from(most.saturating_sub(counted)).unwrap_or(0),
        reset_s: left_ms.div_ceil(1000),
        is_of_route: true,
    });
    Some(if counted > most {
        Err(refused(Duration::from_millis(left_ms)))
    } else {
        Ok(())
    })
}

fn name(by: RateBy) -> &'static str {
    match by {
        RateBy::Address => "address",
        RateBy::Principal => "principal",
        RateBy::Route => "route",
    }
}

fn principal_key(state: &State, ctx: &Context, salt: u64) -> Option<u64> {
    ctx.caller.as_ref().map(|caller| {
        state
            .keys
            .hash_one((caller.issuer(), caller.subject(), salt))
    })
}

fn take(
    state: &State,
    ctx: &mut Context,
    (name, is_of_route): (&'static str, bool),
    rate: Rate,
    (key, now): (u64, Instant),
) -> Result<(), Problem> {
    let verdict = state.limiter.take(rate, key, state.nanos(now));
    let quota = quota(rate, verdict, (name, is_of_route));
    if ctx
        .quota
        .is_none_or(|known| quota.remaining <= known.remaining)
    {
        ctx.quota = Some(quota);
    }
    match verdict {
        Verdict::Allowed { .. } => Ok(()),
        Verdict::Refused { retry_after } => Err(refused(retry_after)),
    }
}

fn quota(rate: Rate, verdict: Verdict, (name, is_of_route): (&'static str, bool)) -> Quota {
    let (remaining, reset) = match verdict {
        Verdict::Allowed { remaining } => (remaining, Duration::from_nanos(rate.interval_ns)),
        Verdict::Refused { retry_after } => (0, retry_after),
    };
    let (most, window_s) = (rate.burst, rate.window_s);
    Quota {
        name,
        most,
        window_s,
        remaining,
        reset_s: seconds(reset),
        is_of_route,
    }
}

fn refused(retry_after: Duration) -> Problem {
    Problem::new(Code::RateLimited)
        .retry_after(u32::try_from(seconds(retry_after)).unwrap_or(u32::MAX))
}

/// Rounded up: a client that waits so long is not too early.
fn seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_to_wait_are_rounded_up() {
        for (nanos, whole) in [(0, 0), (1, 1), (1_000_000_000, 1), (1_000_400_000, 2)] {
            assert_eq!(seconds(Duration::from_nanos(nanos)), whole, "{nanos}");
        }
    }
}
