//! Routing, authentication and authorization of a request.

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use pingora::http::RequestHeader;
use pingora_proxy::Session;
use postern_core::clock::Timestamp;
use postern_core::token::Caller;
use postern_core::trace::{TRACEPARENT, parse_traceparent};
use postern_core::{Code, Problem};
use postern_http::downstream::RESPONSE_BUFFER_BYTES;
use postern_http::message::headers;
use postern_http::message::target::{RequestTarget, TargetFault};
use postern_service::http::bearer;

use crate::admission::credentials::Credential;
use crate::admission::{external, rate_limits};
use crate::api_keys::is_api_key;
use crate::certificates::HostGuard;
use crate::downstream::session_ext::SessionExt;
use crate::external_authorization::AddedHeaders;
use crate::routing::decision::{self, enforce};
use crate::routing::router::{RouteIndex, RouteRequest};
use crate::routing::table::{RouteMatch, RouteTable};
use crate::state::GatewayState;
use crate::state::request_context::ReceivedRequest;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::trace_context::TraceContext;

/// A request with its parsed target and the result of its route lookup.
pub(crate) struct RoutedRequest<'r> {
    pub(crate) request: RouteRequest<'r>,
    pub(crate) found: RouteMatch,
}

/// Parses the target and looks up the route.
///
/// # Errors
/// The target is not canonical, and no route accepts it.
pub(crate) fn route<'r>(
    head: &'r RequestHeader,
    table: &RouteTable,
) -> Result<RoutedRequest<'r>, Problem> {
    let rejected = |fault: TargetFault| Problem::new(Code::InvalidTarget).detail(fault.detail());
    let target = RequestTarget::parse_ambiguous(head.raw_path()).map_err(rejected)?;
    let request = RouteRequest {
        host: request_authority(head),
        path: target.path,
        query: target.query,
        method: head.method.as_str(),
        headers: &head.headers,
    };
    let found = table.find_target(&request, &target).map_err(rejected)?;
    Ok(RoutedRequest { request, found })
}

/// Checks, in this order: address limit, response buffers, connection, token, route, access list and
/// policy, route limits, body size, external authorization. Returns the route, and the header fields
/// that the external authorization service adds.
pub(super) async fn authorize(
    state: &GatewayState,
    client: &Session,
    config: &RuntimeConfig,
    routed: &RoutedRequest<'_>,
    credential: Option<Credential>,
    request: &mut ReceivedRequest,
) -> Result<(RouteIndex, Option<AddedHeaders>), Problem> {
    let (found, path) = (routed.found, routed.request.path);
    let table = &config.route_table;
    let head = client.req_header();
    request.has_canonical_target = true;
    request.route = found.route();
    rate_limits::check_address(state, request)?;
    if !state
        .response_buffers
        .has_room(request.client_share(), RESPONSE_BUFFER_BYTES)
    {
        return Err(
            Problem::new(Code::Unavailable).detail("Too many responses wait for their readers.")
        );
    }
    check_connection(state, client, table, found, request.start_time)?;
    let caller = match decision::is_public(table, found) {
        true => None,
        false => Some(identify(state, config, client, credential, request.start_time).await?),
    };
    let (address, reported) = (request.known_address(), &mut request.reported);
    let decision = decision::decide(table, (found, path), caller.as_ref(), address, reported);
    request.caller = caller;
    let index = decision?;
    let route = &table.routes[index];
    let verdict = rate_limits::check_route(state, route, request);
    enforce(route, verdict, &mut request.reported)?;
    // Before any byte of the body is read.
    if content_length(&head.headers) > Some(route.settings.body_bytes) {
        return Err(Code::BodyTooLarge.into());
    }
    if route.answer.is_none() && headers::is_looping(&head.headers) {
        let detail = "The request has passed the gateway ten times: an upstream leads back to it.";
        return Err(Problem::new(Code::UpstreamFailed).detail(detail));
    }
    let added_headers = match &config.route_states[index].authorizer {
        Some(service) => {
            // Boxed, because few routes have it and the state of every request would be larger.
            let verdict = Box::pin(external::check(service, head, request)).await;
            enforce(route, verdict, &mut request.reported)?
        }
        None => None,
    };
    if let Some(deadline) = client.deadline() {
        deadline.set_timeout(route.settings.deadline, request.started);
    }
    Ok((index, added_headers))
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

/// Rejects a request for a host whose client authentication the connection has not passed. A
/// connection whose certificate was revoked after the handshake is closed, so that the client can
/// authenticate anew.
fn check_connection(
    state: &GatewayState,
    client: &Session,
    table: &RouteTable,
    found: RouteMatch,
    now: Timestamp,
) -> Result<(), Problem> {
    let tls_client = client.tls_client();
    let passed = tls_client.filter(|client| client.is_accepted(now));
    if let (Some(_revoked), None, Some(deadline)) = (tls_client, passed, client.deadline()) {
        deadline.close_after_response();
    }
    let is_accepted = |guard: &HostGuard| {
        let authority = request_authority(client.req_header());
        guard.accepts(authority, table.hosts(found), passed)
    };
    match state.host_guard.as_ref().is_none_or(is_accepted) {
        true => Ok(()),
        false => Err(Code::MisdirectedRequest.into()),
    }
}

/// Returns the caller of `Authorization`, or else of a credential in another place, or else the
/// service that the client certificate identifies. The first that is present decides, also if it is
/// not accepted.
async fn identify(
    state: &GatewayState,
    config: &RuntimeConfig,
    client: &Session,
    credential: Option<Credential>,
    now: Timestamp,
) -> Result<Caller, Problem> {
    let headers = &client.req_header().headers;
    if headers.contains_key(AUTHORIZATION) {
        return authenticate(state, config, headers, now).await;
    }
    match (credential, &config.api_keys) {
        (Some(Credential::ApiKey(key)), Some(file)) => file.keys().verify(key.expose(), now),
        (Some(Credential::Token(token)), _) => verify(state, config, token.expose(), now).await,
        (Some(Credential::ApiKey(_)) | None, _) => {
            let by_certificate = client.tls_client().and_then(|tls| tls.caller(now));
            by_certificate
                .cloned()
                .ok_or(Code::AuthenticationRequired.into())
        }
    }
}

/// Verifies the single Bearer token.
pub(crate) async fn authenticate(
    state: &GatewayState,
    config: &RuntimeConfig,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Caller, Problem> {
    verify(state, config, bearer(headers)?, now).await
}

/// Verifies a token, whose signature is not verified if the result is cached, or an API key.
async fn verify(
    state: &GatewayState,
    config: &RuntimeConfig,
    token: &str,
    now: Timestamp,
) -> Result<Caller, Problem> {
    if let Some(file) = &config.api_keys
        && is_api_key(token)
    {
        return file.keys().verify(token, now);
    }
    let verified = state.verifier.verify_at(token, now).await;
    verified.map_err(Problem::from)
}

/// Returns the value of `Content-Length`.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Continues the client's trace, or starts a new one.
pub(crate) fn start_trace_span(
    state: &GatewayState,
    headers: &HeaderMap,
    request: &mut ReceivedRequest,
) {
    let given = headers
        .get(TRACEPARENT)
        .and_then(|value| parse_traceparent(value.to_str().ok()?));
    let span = state.ids.random_u64();
    request.trace = match given {
        Some(caller) => TraceContext {
            is_recorded: state.tracer.is_some() && caller.is_sampled(),
            ..TraceContext::follow(&caller, span)
        },
        None => {
            let id = u128::from(state.ids.random_u64()) << 64 | u128::from(state.ids.random_u64());
            let sampled = state
                .tracer
                .as_ref()
                .is_some_and(|tracer| tracer.samples(id.into()));
            TraceContext {
                id,
                span,
                parent: None,
                flags: u8::from(sampled),
                is_recorded: sampled,
            }
        }
    };
}
