//! From a head to the decision whether it may go on.

use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use pingora::http::RequestHeader;
use postern_common::clock::Timestamp;
use postern_common::http::bearer;
use postern_common::token::Caller;
use postern_common::{Code, Problem};

use crate::admission::rate_limits;
use crate::downstream::client_exchange::Client;
use crate::message::grpc;
use crate::message::headers;
use crate::message::target::Target;
use crate::routing::router::Request;
use crate::routing::table::Found;
use crate::state::State;
use crate::state::request_context::Context;
use crate::telemetry::trace_context::Trace;

/// Target, route, address limit, token, policy, principal limit, size: in this order.
pub(crate) async fn admit(
    state: &State,
    client: &impl Client,
    ctx: &mut Context,
) -> Result<(), Problem> {
    let live = Arc::clone(&ctx.live);
    let head = client.request();
    follow_trace(state, &head.headers, ctx);
    let target = Target::parse(head.raw_path())
        .map_err(|fault| Problem::new(Code::InvalidTarget).detail(fault.detail()))?;
    ctx.is_canonical = true;
    let host = host(head);
    let request = Request {
        host,
        path: target.path,
        query: target.query,
        method: head.method.as_str(),
        headers: &head.headers,
    };
    let found = live.table.find(&request);
    if let Found::Route(index) = found {
        ctx.route = Some(index);
    }
    rate_limits::by_address(state, ctx)?;
    if !state
        .response_buffers
        .have_room(&live.limits, client.address())
    {
        return Err(
            Problem::new(Code::Unavailable).detail("Too many responses wait for their readers.")
        );
    }
    let is_public = match found {
        Found::Route(route) => live.table.routes[route].policy.is_public(),
        Found::Method { public, .. } => public,
        Found::Nothing => false,
    };
    if !is_public {
        ctx.caller = Some(authenticate(state, &head.headers, ctx.began_at).await?);
    }
    let route = match found {
        Found::Route(index) => &live.table.routes[index],
        Found::Method { allow, .. } => return Err(Problem::method_not_allowed(allow.to_string())),
        Found::Nothing => return Err(Code::NotFound.into()),
    };
    if let Some(Err(code)) = ctx
        .caller
        .as_ref()
        .map(|caller| route.policy.decide(caller))
    {
        if !route.policy.is_audit_only() {
            return Err(code.into());
        }
        ctx.audit = Some(code);
        state
            .metrics
            .audited
            .with_label_values(&[route.name.as_str(), code.as_str()])
            .inc();
    }
    rate_limits::by_principal(state, ctx)?;
    rate_limits::by_route(state, route, ctx).await?;
    check_size(&head.headers, route.body_bytes)?;
    if let Some(watch) = client.watch() {
        // Only where calls are carried does the client's deadline count.
        if grpc::is_call(head) && live.is_http2(route) {
            watch.set_deadline(grpc::deadline(head, route.deadline)?, ctx.started);
            watch.mark_call();
        } else {
            watch.set_deadline(route.deadline, ctx.started);
        }
    }
    Ok(())
}

/// The authority: of the target (HTTP/2), else `Host`.
pub(crate) fn host(head: &RequestHeader) -> &str {
    match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head
            .headers
            .get(http::header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default(),
    }
}

/// Exactly one Bearer token that verifies. A token that was seen before costs no signature.
async fn authenticate(
    state: &State,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Caller, Problem> {
    let token = bearer(headers)?;
    let verdict = match state.verifier.verify_cached_at(token, now) {
        Some(verdict) => verdict,
        None => state.verifier.verify_unseen(token).await,
    };
    verdict.map_err(Problem::from)
}

/// What is announced to be too large is refused before a byte of it is read.
fn check_size(headers: &HeaderMap, most: u64) -> Result<(), Problem> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match announced {
        Some(length) if length > most => Err(Code::BodyTooLarge.into()),
        Some(_) | None => Ok(()),
    }
}

/// Goes on with the client's trace, or begins one.
fn follow_trace(state: &State, headers: &HeaderMap, ctx: &mut Context) {
    let given = headers
        .get("traceparent")
        .filter(|value| headers::is_traceparent(value.as_bytes()));
    let span = state.ids.number();
    ctx.trace = match given.and_then(|value| value.to_str().ok()) {
        Some(text) => Trace::follow(text, span),
        None => {
            let id = u128::from(state.ids.number()) << 64 | u128::from(state.ids.number());
            let sampled = state
                .traces
                .as_ref()
                .is_some_and(|traces| traces.samples(state.ids.number()));
            Trace {
                id,
                span,
                parent: None,
                flags: u8::from(sampled),
            }
        }
    };
}
