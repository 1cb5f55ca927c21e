//! Mirroring: copies of requests to a second upstream, whose responses are discarded.
//!
//! A mirrored request never delays the request itself: its body is copied while it is forwarded,
//! and a task of its own sends it once the body is complete. It is sent once, and never again.
//! The exchange calls [`note_body`] for each part of a body.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora_proxy::Session;
use postern_http::client_shares::BudgetPermit;
use postern_http::message::headers;
use postern_http::upstream::{IdleCheck, ResponseBody, UpstreamConnection};
use prometheus::IntCounterVec;
use strum::IntoStaticStr;

use crate::admission::authorize::content_length;
use crate::config::MirrorConfig;
use crate::forwarding::upstream_request;
use crate::state::request_context::AdmittedRequest;
use crate::upstream::UpstreamPool;

/// The field that distinguishes a mirrored request. Clients cannot send it.
const MIRROR_FIELD: &str = "x-postern-mirror";

/// Maximum bytes of a response that are read so that its connection can be reused.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The result of a request that was chosen to be mirrored, as a label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum MirrorResult {
    Answered,
    Failed,
    TimedOut,
    DroppedInFlight,
    DroppedBodyBytes,
    DroppedNoEndpoint,
}

struct MirroredRequest {
    route: String,
    pool: Arc<UpstreamPool>,
    head: BytesMut,
    body: Bytes,
    is_head_request: bool,
    timeout: Duration,
    results: IntCounterVec,
    _slot: BudgetPermit,
}

/// The copy of a request whose body is being received.
#[derive(Debug)]
pub(super) struct MirrorCapture<'r> {
    mirror: &'r MirrorConfig,
    /// The slot among the mirrored requests of the route.
    slot: BudgetPermit,
    body: BytesMut,
}

/// Decides whether an admitted request is mirrored, and sends the copy if it has no body. WebSocket
/// upgrades and the authentication of connections are not mirrored, because their messages depend on
/// the answers.
pub(super) fn begin<'r>(
    session: &mut Session,
    admitted: &AdmittedRequest<'r>,
) -> Result<Option<MirrorCapture<'r>>> {
    let runtime = &admitted.request.config.route_states[admitted.admission.route];
    let (Some(mirror), Some(slots)) = (&admitted.route.mirror, &runtime.mirror_slots) else {
        return Ok(None);
    };
    let head = session.req_header();
    let is_dialogue = (admitted.route.settings.websocket && headers::is_websocket_upgrade(head))
        || headers::authenticates_connection(&head.headers, AUTHORIZATION);
    if is_dialogue || !is_sampled(mirror.share, admitted.state.ids.random_u64()) {
        return Ok(None);
    }
    if content_length(&head.headers) > Some(mirror.body_bytes as u64) {
        count(admitted, MirrorResult::DroppedBodyBytes);
        return Ok(None);
    }
    let Some(slot) = slots.reserve(admitted.client_share(), 1) else {
        count(admitted, MirrorResult::DroppedInFlight);
        return Ok(None);
    };
    let body = BytesMut::new();
    let mut capture = Some(MirrorCapture { mirror, slot, body });
    if session.is_body_empty() {
        note_body(&mut capture, session.req_header(), &[], true, admitted)?;
    }
    Ok(capture)
}

/// Copies a part of the request body, and sends the copy at its end.
pub(super) fn note_body(
    capture: &mut Option<MirrorCapture<'_>>,
    head: &RequestHeader,
    part: &[u8],
    end: bool,
    admitted: &AdmittedRequest<'_>,
) -> Result<()> {
    let Some(MirrorCapture { mirror, body, .. }) = capture else {
        return Ok(());
    };
    if body.len() + part.len() > mirror.body_bytes {
        *capture = None;
        count(admitted, MirrorResult::DroppedBodyBytes);
        return Ok(());
    }
    body.extend_from_slice(part);
    if end && let Some(capture) = capture.take() {
        tokio::spawn(build_request(head, capture, admitted)?.send());
    }
    Ok(())
}

fn build_request(
    head: &RequestHeader,
    MirrorCapture { mirror, slot, body }: MirrorCapture<'_>,
    admitted: &AdmittedRequest<'_>,
) -> Result<MirroredRequest> {
    let body = body.freeze();
    let pool = Arc::clone(&admitted.config.pools[mirror.upstream]);
    let mut copy = head.clone();
    let had_length = copy.remove_header(&CONTENT_LENGTH).is_some();
    copy.remove_header(&EXPECT);
    let mut message = upstream_request::serialize_request(&copy, &pool.config, b"", admitted)?;
    // Before the empty line at the end of the head.
    message.truncate(message.len() - 2);
    headers::append_field(&mut message, MIRROR_FIELD, b"1");
    if had_length || !body.is_empty() {
        let length = body.len().to_string();
        headers::append_field(&mut message, CONTENT_LENGTH.as_str(), length.as_bytes());
    }
    message.extend_from_slice(b"\r\n");
    Ok(MirroredRequest {
        route: admitted.route.name.clone(),
        pool,
        head: message,
        body,
        is_head_request: head.method == Method::HEAD,
        timeout: mirror.timeout,
        results: admitted.state.metrics.mirrored.clone(),
        _slot: slot,
    })
}

fn is_sampled(share: f64, random: u64) -> bool {
    share >= 1.0 || (random as f64) < share * (u64::MAX as f64)
}

fn count(admitted: &AdmittedRequest<'_>, result: MirrorResult) {
    let result: &'static str = result.into();
    let labels = [admitted.route.name.as_str(), result];
    let mirrored = &admitted.state.metrics.mirrored;
    mirrored.with_label_values(&labels).inc();
}

impl MirroredRequest {
    /// Sends the request and discards the response. Failures are not recorded for the address: they
    /// must not affect the requests that are not copies.
    async fn send(self) {
        let (results, route) = (self.results.clone(), self.route.clone());
        let result = match tokio::time::timeout(self.timeout, self.exchange()).await {
            Ok(result) => result,
            Err(_elapsed) => MirrorResult::TimedOut,
        };
        let result: &'static str = result.into();
        let labels = [route.as_str(), result];
        results.with_label_values(&labels).inc();
    }

    async fn exchange(self) -> MirrorResult {
        let Ok(permit) = self.pool.pick(None, None, Instant::now()) else {
            return MirrorResult::DroppedNoEndpoint;
        };
        let endpoint = Arc::clone(&permit.endpoint);
        let config = &self.pool.config;
        let idle = endpoint.idle.take(config.idle_timeout, IdleCheck::Now);
        let connected = match idle {
            Some(connection) => Ok(connection),
            None => {
                let (peer, pins) = (&endpoint.peer, &endpoint.pins);
                UpstreamConnection::connect(peer, pins, config.connect_timeout).await
            }
        };
        let Ok(mut connection) = connected else {
            return MirrorResult::Failed;
        };
        let mut message = self.head.chain(self.body);
        let is_head = self.is_head_request;
        let sending = poll_fn(|cx| match connection.poll_send(cx, &mut message) {
            Poll::Ready(sent) => Poll::Ready(sent.map(|()| None)),
            Poll::Pending => connection.poll_response(cx, is_head).map_ok(Some),
        });
        match sending.await {
            Ok(None) => {}
            // After an early answer, the connection is not reused.
            Ok(Some(_)) => return MirrorResult::Answered,
            Err(_) => return MirrorResult::Failed,
        }
        match discard_response(&mut connection, self.is_head_request).await {
            Ok(true) => endpoint.idle.put(connection, Instant::now()),
            Ok(false) => {}
            Err(_) => return MirrorResult::Failed,
        }
        MirrorResult::Answered
    }
}

/// Reads a response. Returns whether the connection can be reused.
async fn discard_response(
    connection: &mut UpstreamConnection,
    is_head_request: bool,
) -> Result<bool> {
    let mut response = poll_fn(|cx| connection.poll_response(cx, is_head_request)).await?;
    while response.head.status.is_informational() && response.head.status.as_u16() != 101 {
        response = poll_fn(|cx| connection.poll_response(cx, is_head_request)).await?;
    }
    let mut received = 0;
    while response.body != ResponseBody::Done {
        let part = poll_fn(|cx| connection.poll_body(cx, &mut response.body)).await?;
        received += part.map_or(0, |part| part.len());
        if received > MAX_RESPONSE_BYTES {
            return Ok(false);
        }
    }
    Ok(response.keep_alive && response.head.status.as_u16() != 101)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_fraction_of_random_numbers() {
        let quarter = u64::MAX / 4;
        for (share, random, want) in [
            (0.0, 0, false),
            (1.0, u64::MAX, true),
            (0.25, quarter - (1 << 20), true),
            (0.25, quarter + (1 << 20), false),
        ] {
            assert_eq!(is_sampled(share, random), want, "{share} {random}");
        }
    }
}
