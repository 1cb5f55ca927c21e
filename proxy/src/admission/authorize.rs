//! Routing, authentication and authorization of a request.

use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use pingora::http::RequestHeader;
use postern_common::clock::Timestamp;
use postern_common::http::bearer;
use postern_common::token::Caller;
use postern_common::{Code, Problem};

use crate::admission::rate_limits;
use crate::config::Route;
use crate::downstream::client_exchange::ClientExchange;
use crate::message::grpc;
use crate::message::headers;
use crate::message::target::RequestTarget;
use crate::routing::router::RouteRequest;
use crate::routing::table::RouteMatch;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;
use crate::telemetry::trace_context::TraceContext;

/// Checks, in this order: target, route, address limit, response buffers, token, policy, principal
/// limit, route limits, body size.
pub(crate) async fn authorize(
    state: &GatewayState,
    client: &impl ClientExchange,
    ctx: &mut RequestContext,
) -> Result<(), Problem> {
    let config = Arc::clone(&ctx.config);
    let head = client.request();
    start_trace_span(state, &head.headers, ctx);
    let target = RequestTarget::parse(head.raw_path())
        .map_err(|fault| Problem::new(Code::InvalidTarget).detail(fault.detail()))?;
    ctx.has_canonical_target = true;
    let host = request_authority(head);
    let request = RouteRequest {
        host,
        path: target.path,
        query: target.query,
        method: head.method.as_str(),
        headers: &head.headers,
    };
    let found = config.route_table.find(&request);
    if let RouteMatch::Route(index) = found {
        ctx.route = Some(index);
    }
    rate_limits::check_address(state, ctx)?;
    if !state
        .response_buffers
        .has_room(&config.limits, client.peer_address())
    {
        return Err(
            Problem::new(Code::Unavailable).detail("Too many responses wait for their readers.")
        );
    }
    let is_public = match found {
        RouteMatch::Route(route) => config.route_table.routes[route].policy.is_public(),
        RouteMatch::MethodNotAllowed { public, .. } => public,
        RouteMatch::NotFound => false,
    };
    if !is_public {
        ctx.caller = Some(authenticate(state, &head.headers, ctx.start_time).await?);
    }
    let route = match found {
        RouteMatch::Route(index) => &config.route_table.routes[index],
        RouteMatch::MethodNotAllowed { allow, .. } => {
            return Err(Problem::method_not_allowed(allow.to_string()));
        }
        RouteMatch::NotFound => return Err(Code::NotFound.into()),
    };
    apply_policy(state, route, ctx)?;
    rate_limits::check_principal(state, ctx)?;
    rate_limits::check_route(state, route, ctx).await?;
    check_content_length(&head.headers, route.body_bytes)?;
    set_deadline(client, route, ctx)
}

/// Evaluates the policy of the route. A report-only policy records its decision only.
fn apply_policy(
    state: &GatewayState,
    route: &Route,
    ctx: &mut RequestContext,
) -> Result<(), Problem> {
    if let Some(Err(code)) = ctx
        .caller
        .as_ref()
        .map(|caller| route.policy.decide(caller))
    {
        if !route.policy.is_report_only() {
            return Err(code.into());
        }
        ctx.report_only_code = Some(code);
        state
            .metrics
            .policy_report_only
            .with_label_values(&[route.name.as_str(), code.as_str()])
            .inc();
    }
    Ok(())
}

/// Sets the deadline of the request: that of the route, or a shorter one of a gRPC call.
fn set_deadline(
    client: &impl ClientExchange,
    route: &Route,
    ctx: &RequestContext,
) -> Result<(), Problem> {
    let head = client.request();
    if let Some(deadline) = client.deadline() {
        // The client's timeout applies only to calls that are forwarded as gRPC.
        if grpc::is_call(head) && ctx.config.is_http2(route) {
            deadline.set_timeout(grpc::effective_timeout(head, route.deadline)?, ctx.started);
            deadline.mark_grpc();
        } else {
            deadline.set_timeout(route.deadline, ctx.started);
        }
    }
    Ok(())
}

/// Returns the authority: that of the target (HTTP/2), or else `Host`.
pub(crate) fn request_authority(head: &RequestHeader) -> &str {
    match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head
            .headers
            .get(http::header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default(),
    }
}

/// Verifies the single Bearer token. No signature is verified if the result is cached.
async fn authenticate(
    state: &GatewayState,
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

/// Rejects a body by its `Content-Length`, before any byte is read.
fn check_content_length(headers: &HeaderMap, limit: u64) -> Result<(), Problem> {
    let content_length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match content_length {
        Some(length) if length > limit => Err(Code::BodyTooLarge.into()),
        Some(_) | None => Ok(()),
    }
}

/// Continues the client's trace, or starts a new one.
fn start_trace_span(state: &GatewayState, headers: &HeaderMap, ctx: &mut RequestContext) {
    let given = headers
        .get("traceparent")
        .filter(|value| headers::is_traceparent(value.as_bytes()));
    let span = state.ids.random_u64();
    ctx.trace = match given.and_then(|value| value.to_str().ok()) {
        Some(text) => TraceContext::follow(text, span),
        None => {
            let id = u128::from(state.ids.random_u64()) << 64 | u128::from(state.ids.random_u64());
            let sampled = state
                .spans
                .as_ref()
                .is_some_and(|spans| spans.should_sample(state.ids.random_u64()));
            TraceContext {
                id,
                span,
                parent: None,
                flags: u8::from(sampled),
            }
        }
    };
}
