//! Requests to upstreams: choice of an address and the forwarded message.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use http::header::{AUTHORIZATION, HOST, TE};
use http::{HeaderMap, HeaderValue, Version};
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, OrErr, Result};
use pingora_proxy::Session;
use postern_core::{Code, log_outage};
use postern_http::message::headers;
use postern_http::upstream::BoundConnection;
use uuid::Uuid;

use crate::admission::header_changes;
use crate::config::{Route, UpstreamConfig};
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::failure;
use crate::forwarding::identity_headers::IdentityHeaders;
use crate::state::request_context::{AdmittedRequest, ForwardingRecord, UpstreamAttempt};
use crate::telemetry::failure_cause::FailureCause;
use crate::upstream::{NoEndpoint, UpstreamPool};

const INVALID_IDENTITY: &str = "identity is not a valid header value";

/// Chooses the address of the next attempt.
pub(super) fn choose_endpoint<'r>(
    client: &Session,
    admitted: &'r AdmittedRequest<'r>,
    record: &mut ForwardingRecord,
) -> Result<UpstreamAttempt<'r>> {
    let pool = admitted.pool;
    record.attempts += 1;
    let before = record.last.take();
    let avoid = before.as_ref().map(|(endpoint, _)| &**endpoint);
    let started = Instant::now();
    let permit = pool.pick(admitted.client_share(), avoid, started);
    let permit = permit.map_err(|reason| {
        pool.count_failure(FailureCause::NoEndpoint);
        log_no_endpoint(pool, admitted.id, reason);
        failure::fail_with(Code::UpstreamUnavailable)
    })?;
    let permit = match client.bound_upstream().and_then(BoundConnection::pool) {
        Some(idle) if avoid.is_none() => pool.move_to(&idle, permit),
        Some(_) | None => permit,
    };
    pool.attempts.inc();
    if let Some(deadline) = client.deadline() {
        let timeout = pool.config.connect_timeout + admitted.read_timeout();
        deadline.expect_upstream(timeout, started);
    }
    record.last = Some((Arc::clone(&permit.endpoint), started));
    Ok(UpstreamAttempt {
        admitted,
        number: record.attempts,
        permit,
        started,
    })
}

/// Logs that no upstream address is available, as a rate-limited warning.
fn log_no_endpoint(pool: &UpstreamPool, request_id: Uuid, reason: NoEndpoint) {
    let upstream = &pool.config.name;
    log_outage!(format!("upstream {upstream}"), %request_id, %upstream, %reason, "no upstream address available");
}

/// Builds the peer of a request over HTTP/2, whose connection it shares with others.
pub(super) fn http2_peer(session: &mut Session, attempt: &UpstreamAttempt<'_>) -> HttpPeer {
    let endpoint = &attempt.permit.endpoint;
    let mut peer = endpoint.peer.clone();
    let headers = &session.req_header().headers;
    let owner = match headers::authenticates_connection(headers, AUTHORIZATION) {
        // No other request finds the connection.
        true => Some(attempt.id.as_u64_pair().1),
        false => attempt.client_share().filter(|_| !session.is_body_empty()),
    };
    peer.group_key = endpoint.connection_group(owner);
    peer
}

/// Builds the head of a request over HTTP/2.
pub(super) fn http2_request(
    client: &RequestHeader,
    peer: &HttpPeer,
    admitted: &AdmittedRequest<'_>,
) -> Result<http::Request<()>> {
    let identity = identity_headers(&admitted.pool.config, admitted);
    let mut fields = identity
        .header_map(&changed_headers(client, admitted))
        .or_err(ErrorType::InternalError, INVALID_IDENTITY)?;
    // `TE` is hop-by-hop. gRPC servers reject calls without it.
    if headers::accepts_trailers(client) {
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    let host = fields.remove(HOST);
    let uri = http::Uri::builder()
        .scheme(if peer.is_tls() { "https" } else { "http" })
        .authority(host.as_ref().map_or(&b""[..], HeaderValue::as_bytes))
        .path_and_query(&*target(client, admitted))
        .build();
    let uri = uri.or_err(ErrorType::InvalidHTTPHeader, "target for HTTP/2");
    let mut request = http::Request::new(());
    *request.method_mut() = client.method.clone();
    *request.uri_mut() = uri.map_err(Error::into_down)?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = fields;
    Ok(request)
}

fn target<'a>(client: &'a RequestHeader, admitted: &AdmittedRequest<'_>) -> Cow<'a, [u8]> {
    match &admitted.route.rewrite {
        Some(rewrite) => rewrite.apply(client.raw_path()).into(),
        None => client.raw_path().into(),
    }
}

/// Checks the received part of the body, whose length may not be known before its end.
///
/// # Errors
/// 413 if the body is longer than the route permits.
pub(super) fn check_body_bytes(session: &Session, route: &Route) -> Result<()> {
    match session.body_bytes_read() as u64 > route.settings.body_bytes {
        true => Err(failure::fail_with(Code::BodyTooLarge)),
        false => Ok(()),
    }
}

/// Serializes the head of the request to an upstream as HTTP/1.1, with these hop-by-hop fields.
pub(super) fn serialize_request(
    request: &RequestHeader,
    upstream: &UpstreamConfig,
    hop_by_hop: &[u8],
    admitted: &AdmittedRequest<'_>,
) -> Result<BytesMut> {
    let mut message = BytesMut::with_capacity(2 << 10);
    message.extend_from_slice(request.method.as_str().as_bytes());
    message.extend_from_slice(b" ");
    message.extend_from_slice(&target(request, admitted));
    message.extend_from_slice(b" HTTP/1.1\r\n");
    identity_headers(upstream, admitted)
        .append(&changed_headers(request, admitted), &mut message)
        .or_err(ErrorType::InternalError, INVALID_IDENTITY)?;
    message.extend_from_slice(hop_by_hop);
    message.extend_from_slice(b"\r\n");
    Ok(message)
}

/// Returns the fields of a client, with the changes of the route. It may set reserved ones that the
/// gateway does not fill.
fn changed_headers<'c>(
    client: &'c RequestHeader,
    admitted: &AdmittedRequest<'_>,
) -> Cow<'c, HeaderMap> {
    let Some(changes) = &admitted.route.settings.request_headers else {
        return Cow::Borrowed(&client.headers);
    };
    let mut headers = client.headers.clone();
    headers::strip(&mut headers, headers::is_reserved);
    let variables = header_changes::variables(client, admitted, Some(admitted.pool));
    header_changes::apply(changes, &mut headers, &variables);
    Cow::Owned(headers)
}

fn identity_headers<'a>(
    upstream: &'a UpstreamConfig,
    admitted: &'a AdmittedRequest<'_>,
) -> IdentityHeaders<'a> {
    let settings = &admitted.route.settings;
    let authorize = settings.authorize.as_ref();
    IdentityHeaders {
        id: admitted.id,
        trace: admitted.trace.for_upstream(),
        client: admitted.client_address,
        is_tls: admitted.is_tls,
        caller: admitted.caller.as_ref(),
        replaced: authorize.map_or(&[][..], |authorize| &authorize.forward_headers[..]),
        added: admitted
            .admission
            .added_headers
            .as_deref()
            .unwrap_or_default(),
        hides_api_keys: admitted.config.api_keys.is_some(),
        host: upstream.host.as_ref(),
        forwarded_host: admitted.forwarded_host.as_ref(),
        is_removed: match &settings.request_headers {
            Some(_) => headers::is_filled,
            None => headers::is_reserved,
        },
    }
}
