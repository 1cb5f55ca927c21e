//! Responses of upstreams: checks, statistics and header fields.

use std::sync::atomic::Ordering;
use std::time::Instant;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL, SET_COOKIE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;
use postern_core::Code;
use postern_core::clock::Timestamp;
use postern_http::message::headers;
use postern_service::http::PROBLEM_CODE;
use uuid::Uuid;

use crate::admission::credentials::TOKEN_SUBPROTOCOL;
use crate::admission::header_changes::edit_headers;
use crate::admission::response_headers::apply_common_headers;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::compressed_response;
use crate::forwarding::identity_headers::REQUEST_ID;
use crate::state::request_context::{AdmittedRequest, ForwardingRecord, UpstreamAttempt};

/// Returns the error for a response that is not forwarded.
pub(super) fn invalid_response(reason: &'static str) -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, reason).into_up()
}

/// Records a response head in the statistics of the upstream.
pub(super) fn note_response_head(
    client: &Session,
    response: &ResponseHeader,
    attempt: &UpstreamAttempt<'_>,
    record: &mut ForwardingRecord,
) {
    let status = response.status;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    if status.is_client_error() || status.is_server_error() {
        let code = response
            .headers
            .get(&PROBLEM_CODE)
            .and_then(|code| code.to_str().ok());
        record.upstream_code = code.and_then(Code::named);
    }
    let now = Instant::now();
    let micros = u64::try_from((now - attempt.started).as_micros()).unwrap_or(u64::MAX);
    let is_failure = matches!(status.as_u16(), 502..=504);
    attempt
        .pool
        .note_response(&attempt.permit.endpoint, is_failure, micros, now);
    record.latency_us = Some(micros);
    let Some(deadline) = client.deadline() else {
        return;
    };
    deadline.note_response_head(attempt.read_timeout(), now);
    if is_event_stream(response)
        && let Some(at) = token_expiry(attempt)
    {
        deadline.end_at_expiry(at);
    }
}

/// Returns whether the response is an endless stream of server-sent events.
fn is_event_stream(response: &ResponseHeader) -> bool {
    let content_type = response.headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| {
        let media_type = value.as_bytes().split(|byte| *byte == b';').next();
        media_type.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Returns the time at which a WebSocket or an event stream ends because its token expires.
pub(super) fn token_expiry(admitted: &AdmittedRequest<'_>) -> Option<Instant> {
    let caller = admitted.caller.as_ref()?;
    let now = admitted.start_time.plus(admitted.started.elapsed());
    let left = Timestamp::from_unix_seconds(caller.expires_at()).since(now);
    Instant::now().checked_add(left)
}

/// Sets the header fields of a forwarded response.
pub(super) fn apply_response_headers(
    client: &mut Session,
    response: &mut ResponseHeader,
    attempt: &UpstreamAttempt<'_>,
    record: &mut ForwardingRecord,
) -> Result<()> {
    let settings = &attempt.route.settings;
    let sets_cookie = response.headers.contains_key(SET_COOKIE);
    if sets_cookie && !settings.cookies {
        response.remove_header(&SET_COOKIE);
    }
    strip_headers(response)?;
    if response.status.is_informational() {
        let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade
            && attempt.admission.offers_token
            && !response.headers.contains_key(SEC_WEBSOCKET_PROTOCOL)
        {
            response.insert_header(SEC_WEBSOCKET_PROTOCOL, TOKEN_SUBPROTOCOL)?;
        }
        return Ok(());
    }
    apply_common_headers(client, response, attempt, Some(attempt.pool))?;
    if let Some(compression) = &settings.compression {
        let head = client.req_header();
        compressed_response::prepare(compression, head, response, sets_cookie, attempt, record)?;
    }
    if attempt.state.is_draining.load(Ordering::Relaxed) {
        client.close_after_response();
    }
    // Inserted into the `http` header map, which is cheaper than through Pingora.
    edit_headers(response, |headers| {
        let mut text = Uuid::encode_buffer();
        let id: &str = attempt.id.hyphenated().encode_lower(&mut text);
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.reserve(3);
            headers.insert(&REQUEST_ID, id);
        }
    });
    Ok(())
}

/// Removes hop-by-hop fields, including those that `Connection` lists (RFC 9110 section 7.6.1),
/// fields that only the gateway may set, and those that disclose the software of the upstream. The
/// framing of a body is kept.
fn strip_headers(response: &mut ResponseHeader) -> Result<()> {
    let has_body = !response.status.is_informational() && response.status != StatusCode::NO_CONTENT;
    let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
    let named = headers::connection_options(&response.headers);
    let is_removed = |name: &HeaderName| match *name {
        TRANSFER_ENCODING | CONTENT_LENGTH => !has_body,
        CONNECTION | UPGRADE if is_upgrade => false,
        _ => {
            let text = name.as_str();
            headers::is_hop_by_hop(text)
                || headers::is_identity_header(text)
                || headers::is_server_header(text)
                || named.contains(name)
        }
    };
    while let Some(name) = response
        .headers
        .keys()
        .find(|name| is_removed(name))
        .cloned()
    {
        response.remove_header(&name);
    }
    if is_upgrade {
        response.insert_header(CONNECTION, "Upgrade")?;
    }
    Ok(())
}

/// Removes trailer fields that a response head must not contain either.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    headers::strip(trailers, |name| {
        SET_COOKIE == name || headers::is_identity_header(name) || headers::is_hop_by_hop(name)
    });
}
