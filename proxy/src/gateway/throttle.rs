//! Rate limits on the way of a request.

use std::net::{IpAddr, SocketAddr};

use pingora_proxy::Session;
use postern_common::{Code, Problem};

use crate::config::{RateBy, Route};
use crate::context::Context;
use crate::limit::{Rate, Verdict};
use crate::state::State;

/// Different limits never share a key.
const BY_ADDRESS: u64 = 1;
const BY_PRINCIPAL: u64 = 2;
const BY_ROUTE: u64 = 16;

/// The client's address.
pub(super) fn client(session: &Session) -> Option<IpAddr> {
    session.client_addr()?.as_inet().map(SocketAddr::ip)
}

/// The limit of `limits.address`.
pub(super) fn by_address(state: &State, session: &Session, ctx: &mut Context) -> Result<(), Problem> {
    let Some(address) = client(session) else { return Ok(()) };
    ctx.client_key = state.address_key(address, BY_ADDRESS);
    match ctx.live.limits.address {
        Some(rate) => take(state, rate, ctx.client_key),
        None => Ok(()),
    }
}

/// The limit of `limits.principal`.
pub(super) fn by_principal(state: &State, ctx: &Context) -> Result<(), Problem> {
    match (ctx.live.limits.principal, principal_key(state, ctx, BY_PRINCIPAL)) {
        (Some(rate), Some(key)) => take(state, rate, key),
        _ => Ok(()),
    }
}

/// The limits of the route itself.
pub(super) fn by_route(
    state: &State,
    session: &Session,
    route: &Route,
    ctx: &Context,
) -> Result<(), Problem> {
    for (at, limit) in route.limits.iter().enumerate() {
        let salt = state.keys.hash_one((BY_ROUTE, &route.name, at));
        let key = match limit.by {
            RateBy::Address => client(session).map(|address| state.address_key(address, salt)),
            RateBy::Principal => principal_key(state, ctx, salt),
            RateBy::Route => Some(salt),
        };
        key.map_or(Ok(()), |key| take(state, limit.rate, key))?;
    }
    Ok(())
}

fn principal_key(state: &State, ctx: &Context, salt: u64) -> Option<u64> {
    ctx.caller.as_ref().map(|caller| state.keys.hash_one((caller.issuer(), caller.subject(), salt)))
}

fn take(state: &State, rate: Rate, key: u64) -> Result<(), Problem> {
    match state.limiter.take(rate, key, state.nanos()) {
        Verdict::Allowed { .. } => Ok(()),
        Verdict::Refused { retry_after } => {
            let seconds = u32::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
            Err(Problem::new(Code::RateLimited).retry_after(seconds))
        }
    }
}
