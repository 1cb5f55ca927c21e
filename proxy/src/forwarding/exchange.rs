//! The exchange of a request and its response with an upstream, within Pingora's `request_filter`, by a
//! single task.
//!
//! Pingora forwards both directions of an exchange concurrently, over two channels. That costs
//! more than the rest of a request, and an exchange rarely needs it. Here, a single task takes one
//! step at a time: it reads a part of the request body, sends it, or passes on a part of the
//! response. While the client does not accept a part of the response, no more of the request is
//! sent. A short body is read completely first, so that the request can be sent again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::EXPECT;
use http::{Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;
use postern_http::message::headers;
use postern_http::upstream::{OutboundData, ResponseBody, UpstreamResponse, UpstreamTransport};

use crate::admission::authorize::content_length;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::mirror::MirrorCapture;
use crate::forwarding::open_exchange::{self, OpenExchange, is_upgrade};
use crate::forwarding::{compressed_response, failure, mirror, response, tunnel, upstream_request};
use crate::state::request_context::{AdmittedRequest, ForwardingRecord, UpstreamAttempt};

/// Maximum bytes of a request body that is read completely before the request is sent.
const MAX_BUFFERED_BODY_BYTES: u64 = 16 << 10;

/// Parts of a request body are sent together up to this size.
const MAX_GATHERED_BYTES: usize = 32 << 10;

/// Forwards an admitted request, with retries.
pub(super) async fn forward(
    session: &mut Session,
    admitted: &AdmittedRequest<'_>,
    record: &mut ForwardingRecord,
) -> Result<()> {
    let mut mirror = mirror::begin(session, admitted)?;
    let length = match session.is_body_empty() {
        true => Some(0),
        false => content_length(&session.req_header().headers),
    };
    // An HTTP/2 upstream may answer before the end of the body without harm to its connection.
    let is_http2 = admitted.config.is_http2(admitted.route);
    let awaits_interim = length != Some(0) && session.req_header().headers.contains_key(EXPECT);
    let mut body_read_time = Duration::ZERO;
    let body = match length {
        Some(length) if length <= MAX_BUFFERED_BODY_BYTES && !is_http2 && !awaits_interim => {
            let began = Instant::now();
            let body = read_body(session, length).await?;
            body_read_time = began.elapsed();
            Some(body)
        }
        Some(_) | None => None,
    };
    if awaits_interim && is_http2 {
        // Many HTTP/2 servers never answer the expectation.
        let proceed = Box::new(ResponseHeader::build(StatusCode::CONTINUE, None)?);
        session.write_head(proceed, false).await?;
    }
    if let Some(body) = &body {
        mirror::note_body(&mut mirror, session.req_header(), body, true, admitted)?;
    }
    loop {
        let attempt = upstream_request::choose_endpoint(session, admitted, record)?;
        if attempt.number == 1 {
            let overhead = (attempt.started - admitted.started).saturating_sub(body_read_time);
            let metrics = &admitted.state.metrics;
            metrics.overhead.observe(overhead.as_secs_f64());
        }
        let is_repeatable = session.req_header().method.is_idempotent();
        if body.is_none() && (is_repeatable || admitted.pool.config.http2) {
            session.as_mut().enable_retry_buffering();
        }
        match attempt_once(
            session,
            (body.as_ref(), length),
            &attempt,
            &mut mirror,
            record,
        )
        .await
        {
            Err(error) if error.retry() => failure::back_off(attempt.number).await,
            done => return done,
        }
    }
}

async fn read_body(session: &mut Session, length: u64) -> Result<Bytes> {
    if session.as_mut().is_body_done() {
        return Ok(Bytes::new());
    }
    let read_part = |part: Result<_>| part.map_err(Error::into_down);
    let first = read_part(session.as_mut().read_request_body().await)?.unwrap_or_default();
    if first.len() as u64 == length {
        return Ok(first);
    }
    // Copied, because many small parts would occupy a buffer each.
    let mut body = BytesMut::from(first);
    while let Some(part) = read_part(session.as_mut().read_request_body().await)? {
        body.extend_from_slice(&part);
    }
    Ok(body.freeze())
}

async fn attempt_once<'r>(
    session: &mut Session,
    (body, length): (Option<&Bytes>, Option<u64>),
    attempt: &UpstreamAttempt<'r>,
    mirror: &mut Option<MirrorCapture<'r>>,
    record: &mut ForwardingRecord,
) -> Result<()> {
    let OpenExchange {
        mut upstream,
        was_idle,
        mut outbound,
    } = OpenExchange::open(session, body, length, attempt).await?;
    // Also before a further attempt with a body of which everything is buffered.
    let is_request_read = body.is_some() || session.as_mut().is_body_done();
    if is_request_read {
        outbound.finish();
    }
    let exchange = Exchange {
        attempt,
        mirror,
        record,
        upstream: &mut upstream,
        is_head_request: session.req_header().method == Method::HEAD,
        outbound,
        is_sending: true,
        is_request_read,
        has_begun_to_send: false,
        send_error: None,
        response_body: None,
        has_forwarded: false,
    };
    let done = exchange.run(session).await;
    let idle_since = *done.as_ref().unwrap_or(&None);
    open_exchange::release(upstream, session, idle_since, attempt);
    let has_response = record.latency_us.is_some();
    done.map_err(|error| {
        failure::on_exchange_error(session, error, attempt, was_idle, has_response)
    })?;
    // Also if the request was not read to its end: the upstream is no longer concerned.
    attempt.permit.release();
    Ok(())
}

struct Exchange<'e, 'r> {
    attempt: &'e UpstreamAttempt<'r>,
    mirror: &'e mut Option<MirrorCapture<'r>>,
    record: &'e mut ForwardingRecord,
    upstream: &'e mut UpstreamTransport,
    is_head_request: bool,
    /// The unsent request head, and the unsent part of the body.
    outbound: OutboundData,
    /// Whether `outbound`, or its end in a buffer of the TLS layer, has not been sent.
    is_sending: bool,
    /// Whether sending was tried, or must be next. Before that, the first part of a body is added to
    /// the head.
    has_begun_to_send: bool,
    /// Whether the whole request body has been read from the client.
    is_request_read: bool,
    /// The error after which no more of the request is sent. The response may have arrived.
    send_error: Option<Box<Error>>,
    /// The unread body of the final response, once its head has been received.
    response_body: Option<ResponseBody>,
    /// Whether a response head has been forwarded, so that the request cannot be sent again.
    has_forwarded: bool,
}

enum Step {
    /// A part of the request body was read, or its end.
    RequestBody(Option<Bytes>),
    /// The outbound data was sent.
    Sent,
    SendFailed(Box<Error>),
    ResponseHead(UpstreamResponse),
    ResponseBody(Option<Bytes>),
}

impl Exchange<'_, '_> {
    /// Adds a part of the body that was read now to the outbound data, and to a mirrored request.
    fn append(&mut self, session: &mut Session, part: Bytes) -> Result<()> {
        upstream_request::check_body_bytes(session, self.attempt.route)?;
        let end = session.as_mut().is_body_done();
        mirror::note_body(self.mirror, session.req_header(), &part, end, self.attempt)?;
        self.is_sending |= !part.is_empty();
        self.outbound.append(part);
        Ok(())
    }

    /// Adds parts of the body that have arrived already, so that they are sent together.
    fn append_received(&mut self, session: &mut Session) -> Result<()> {
        while self.outbound.remaining() < MAX_GATHERED_BYTES
            && !session.as_mut().is_body_done()
            && let Some(part) = session.as_mut().read_request_body().now_or_never()
        {
            let part = part.map_err(Error::into_down)?.unwrap_or_default();
            self.append(session, part)?;
        }
        Ok(())
    }

    /// Carries out the exchange. Returns the time since which the connection is idle, if it can be
    /// reused.
    async fn run(mut self, session: &mut Session) -> Result<Option<Instant>> {
        let mut keep_alive = false;
        self.expect_upstream(session, self.attempt.pool.config.write_timeout);
        loop {
            match self.step(session).await.map_err(|error| self.sent(error))? {
                Step::RequestBody(part) => {
                    self.has_begun_to_send = true;
                    self.append(session, part.unwrap_or_default())?;
                    self.append_received(session)?;
                    self.is_request_read = session.as_mut().is_body_done();
                    if self.is_request_read {
                        self.outbound.finish();
                        self.is_sending |=
                            self.outbound.has_remaining() || self.upstream.needs_end();
                    }
                    if self.is_sending {
                        self.expect_upstream(session, self.attempt.pool.config.write_timeout);
                    } else {
                        self.expect_upstream(session, self.attempt.read_timeout());
                    }
                }
                Step::Sent => {
                    self.is_sending = false;
                    if self.is_request_read {
                        self.expect_upstream(session, self.attempt.read_timeout());
                    }
                }
                Step::SendFailed(error) => {
                    (self.is_sending, self.is_request_read) = (false, true);
                    self.send_error.get_or_insert(error);
                }
                Step::ResponseHead(reply) => {
                    let status = reply.head.status;
                    if status == StatusCode::SWITCHING_PROTOCOLS {
                        self.has_forwarded = true;
                        return self.upgrade(session, reply.head).await;
                    }
                    let is_final = !status.is_informational();
                    let is_over = is_final && reply.body == ResponseBody::Done;
                    if is_final {
                        keep_alive = reply.keep_alive;
                        self.response_body = Some(reply.body);
                    }
                    let idle_since = is_over.then(|| self.note_end());
                    self.has_forwarded = true;
                    forward_head(session, reply.head, is_over, self.attempt, self.record).await?;
                    if let Some(since) = idle_since {
                        return Ok(self.is_reusable(keep_alive).then_some(since));
                    }
                }
                Step::ResponseBody(data) => {
                    let is_over = self.response_body == Some(ResponseBody::Done);
                    let idle_since = is_over.then(|| self.note_end());
                    let trailers = self.upstream.take_trailers();
                    let data = compressed_response::encode(data, is_over, self.record)?;
                    match trailers.filter(|_| data.is_none()) {
                        Some(mut trailers) => {
                            response::strip_trailers(&mut trailers);
                            session.write_trailers(trailers).await?;
                        }
                        None => session.write_response_body(data, is_over).await?,
                    }
                    if let Some(since) = idle_since {
                        return Ok(self.is_reusable(keep_alive).then_some(since));
                    }
                }
            }
        }
    }

    /// Forwards 101, and then the bytes of both sides until the upstream closes the connection.
    async fn upgrade(
        self,
        session: &mut Session,
        head: Box<ResponseHeader>,
    ) -> Result<Option<Instant>> {
        let (attempt, record) = (self.attempt, self.record);
        let (true, UpstreamTransport::Http1(upstream)) = (
            is_upgrade(session, attempt.route) && headers::names_websocket(&head.headers),
            self.upstream,
        ) else {
            return Err(response::invalid_response("unrequested protocol upgrade"));
        };
        forward_head(session, head, false, attempt, record).await?;
        tunnel::run(upstream, session, attempt).await?;
        Ok(None)
    }

    /// Waits for the next step. Fails if the upstream fails, the client disconnects or a deadline
    /// passes.
    async fn step(&mut self, session: &mut Session) -> Result<Step> {
        let Self {
            upstream,
            outbound,
            response_body,
            has_begun_to_send,
            ..
        } = self;
        let (is_sending, is_head_request) = (self.is_sending, self.is_head_request);
        let is_request_read = self.is_request_read;
        // One part at a time, so that an upstream that accepts nothing occupies little memory.
        let wants_body = !is_request_read && (!is_sending || !*has_begun_to_send);
        let mut client = pin!(session.as_mut().read_body_or_idle(!wants_body));
        poll_fn(|cx| {
            let mut poll_response =
                |upstream: &mut UpstreamTransport, cx: &mut Context<'_>| match response_body {
                    None => upstream
                        .poll_response(cx, is_head_request)
                        .map_ok(Step::ResponseHead),
                    Some(rest) => upstream.poll_body(cx, rest).map_ok(Step::ResponseBody),
                };
            // A response that has arrived is passed on before more of the request is read.
            let may_be_answered = *has_begun_to_send;
            if may_be_answered && let Poll::Ready(received) = poll_response(upstream, cx) {
                return Poll::Ready(received);
            }
            if wants_body && let Poll::Ready(read) = client.as_mut().poll(cx) {
                return Poll::Ready(read.map(Step::RequestBody).map_err(Error::into_down));
            }
            if is_sending {
                *has_begun_to_send = true;
                if let Poll::Ready(sent) = upstream.poll_send(cx, outbound, is_request_read) {
                    return Poll::Ready(Ok(sent.map_or_else(Step::SendFailed, |()| Step::Sent)));
                }
            }
            if !may_be_answered && let Poll::Ready(received) = poll_response(upstream, cx) {
                return Poll::Ready(received);
            }
            if wants_body {
                return Poll::Pending;
            }
            client.as_mut().poll(cx).map(|client| {
                Err(match client {
                    Ok(_) => Error::new_down(ErrorType::ConnectionClosed),
                    Err(error) => error.into_down(),
                })
            })
        })
        .await
    }

    /// Returns the error of the exchange: that of sending, if no response arrived after it.
    fn sent(&mut self, error: Box<Error>) -> Box<Error> {
        let mut error = match self.send_error.take() {
            Some(earlier) if self.response_body.is_none() => earlier,
            Some(_) | None => error,
        };
        if self.has_forwarded {
            error.set_retry(false);
        }
        error
    }

    /// Starts a timeout of the upstream: that of writing, or of reading once the whole request has been
    /// sent.
    fn expect_upstream(&self, session: &Session, timeout: Duration) {
        if let Some(deadline) = session.deadline() {
            deadline.expect_upstream(timeout, Instant::now());
        }
    }

    /// Records the end of the response, and returns its time.
    fn note_end(&self) -> Instant {
        if self.is_request_read && !self.is_sending {
            self.attempt.permit.release();
        }
        Instant::now()
    }

    /// Returns whether the connection can carry another request after the response.
    fn is_reusable(&self, keep_alive: bool) -> bool {
        keep_alive && self.is_request_read && !self.is_sending && self.send_error.is_none()
    }
}

async fn forward_head(
    session: &mut Session,
    mut head: Box<ResponseHeader>,
    end_of_stream: bool,
    attempt: &UpstreamAttempt<'_>,
    record: &mut ForwardingRecord,
) -> Result<()> {
    response::note_response_head(session, &head, attempt, record);
    response::apply_response_headers(session, &mut head, attempt, record)?;
    session.write_head(head, end_of_stream).await
}
