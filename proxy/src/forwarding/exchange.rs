//! The exchange of a request and its response with an upstream, within Pingora's
//! `proxy_upstream_filter`, by a single task.
//!
//! Pingora forwards both directions of an exchange concurrently, over two channels. That costs
//! more than the rest of a request, and an exchange rarely needs it. Here, a single task takes one
//! step at a time: it reads a part of the request body, sends it, or passes on a part of the
//! response. While the client does not accept a part of the response, no more of the request is
//! sent. A short body is read completely first, so that the request can be sent again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::Session;

use crate::downstream::session_ext::SessionExt;
use crate::forwarding::open_exchange::{OpenExchange, UpstreamTransport, is_upgrade};
use crate::forwarding::outbound_data::OutboundData;
use crate::forwarding::{compressed_response, failure, mirror, response, tunnel, upstream_request};
use crate::message::headers;
use crate::state::GatewayState;
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::upstream::{ResponseBody, UpstreamResponse};

/// Maximum bytes of a request body that is read completely before the request is sent.
const MAX_BUFFERED_BODY_BYTES: u64 = 16 << 10;

/// Parts of a request body are sent together up to this size.
const MAX_GATHERED_BYTES: usize = 32 << 10;

/// Returns the length of the request body, if it is known.
fn body_length(session: &mut Session) -> Option<u64> {
    if session.is_body_empty() {
        return Some(0);
    }
    let length = session.req_header().headers.get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Forwards an admitted request, with retries.
pub(super) async fn forward(
    state: &GatewayState,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<()> {
    let length = body_length(session);
    // An HTTP/2 upstream may answer before the end of the body without harm to its connection.
    let is_http2 = ctx.route().is_some_and(|route| ctx.config.is_http2(route));
    let awaits_interim = length != Some(0) && session.req_header().headers.contains_key(EXPECT);
    let body = match length {
        Some(length) if length <= MAX_BUFFERED_BODY_BYTES && !is_http2 && !awaits_interim => {
            Some(read_body(session, length, ctx).await?)
        }
        Some(_) | None => None,
    };
    if awaits_interim && is_http2 {
        // Pingora drops the interim responses of the upstream.
        let proceed = Box::new(ResponseHeader::build(StatusCode::CONTINUE, None)?);
        session.write_head(proceed, false).await?;
    }
    if let (Some(body), true) = (&body, ctx.mirror.is_some()) {
        mirror::note_body(state, session.req_header(), body, true, ctx)?;
    }
    loop {
        upstream_request::choose_endpoint(state, session, ctx)?;
        let is_http2 = |attempt: &UpstreamAttempt| attempt.pool.config.http2;
        let is_repeatable = session.req_header().method.is_idempotent();
        if body.is_none() && (is_repeatable || ctx.attempt.as_ref().is_some_and(is_http2)) {
            session.as_mut().enable_retry_buffering();
        }
        upstream_request::abort_when_drained(session, ctx).await;
        match attempt_once(state, session, (body.as_ref(), length), ctx).await {
            Err(error) if error.retry() => failure::back_off(ctx.attempts).await,
            done => return done,
        }
    }
}

/// Reads a whole body.
async fn read_body(session: &mut Session, length: u64, ctx: &mut RequestContext) -> Result<Bytes> {
    if session.as_mut().is_body_done() {
        return Ok(Bytes::new());
    }
    let began = Instant::now();
    let read_part = |part: Result<_>| part.map_err(Error::into_down);
    let first = read_part(session.as_mut().read_request_body().await)?.unwrap_or_default();
    let body = if first.len() as u64 == length {
        first
    } else {
        // Copied, because many small parts would occupy a buffer each.
        let mut body = BytesMut::from(first);
        while let Some(part) = read_part(session.as_mut().read_request_body().await)? {
            body.extend_from_slice(&part);
        }
        body.freeze()
    };
    ctx.body_read_time = began.elapsed();
    Ok(body)
}

async fn attempt_once(
    state: &GatewayState,
    session: &mut Session,
    (body, length): (Option<&Bytes>, Option<u64>),
    ctx: &mut RequestContext,
) -> Result<()> {
    let Some(chosen) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let endpoint = Arc::clone(&chosen.permit.endpoint);
    let OpenExchange {
        mut upstream,
        was_idle,
        mut outbound,
    } = OpenExchange::open(session, body, length, chosen, ctx).await?;
    // Also before a further attempt with a body of which everything is buffered.
    let is_request_read = body.is_some() || session.as_mut().is_body_done();
    if is_request_read {
        outbound.finish();
    }
    let exchange = Exchange {
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
    let done = exchange.run(state, session, ctx).await;
    let idle_since = *done.as_ref().unwrap_or(&None);
    upstream.release(session, &endpoint, idle_since, ctx);
    done.map_err(|error| failure::on_exchange_error(session, error, ctx, was_idle))?;
    // Also if the request was not read to its end: the upstream is no longer concerned.
    ctx.note_response_complete();
    Ok(())
}

/// An exchange with an upstream.
struct Exchange<'u> {
    upstream: &'u mut UpstreamTransport,
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

/// A step of an exchange.
enum Step {
    /// A part of the request body was read, or its end.
    RequestBody(Option<Bytes>),
    /// The outbound data was sent.
    Sent,
    /// Sending failed.
    SendFailed(Box<Error>),
    ResponseHead(UpstreamResponse),
    ResponseBody(Option<Bytes>),
}

impl Exchange<'_> {
    /// Adds a part of the body that was read now to the outbound data, and to a mirrored request.
    fn append(
        &mut self,
        state: &GatewayState,
        session: &mut Session,
        part: Bytes,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        upstream_request::check_body_bytes(session, ctx)?;
        if ctx.mirror.is_some() {
            let end = session.as_mut().is_body_done();
            mirror::note_body(state, session.req_header(), &part, end, ctx)?;
        }
        self.is_sending |= !part.is_empty();
        self.outbound.append(part);
        Ok(())
    }

    /// Adds parts of the body that have arrived already, so that they are sent together.
    fn append_received(
        &mut self,
        state: &GatewayState,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        while self.outbound.remaining() < MAX_GATHERED_BYTES
            && !session.as_mut().is_body_done()
            && let Some(part) = session.as_mut().read_request_body().now_or_never()
        {
            let part = part.map_err(Error::into_down)?.unwrap_or_default();
            self.append(state, session, part, ctx)?;
        }
        Ok(())
    }

    /// Carries out the exchange. Returns the time since which the connection is idle, if it can be
    /// reused.
    async fn run(
        mut self,
        state: &GatewayState,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<Option<Instant>> {
        let mut keep_alive = false;
        self.expect_write(session, ctx);
        loop {
            match self.step(session).await.map_err(|error| self.sent(error))? {
                Step::RequestBody(part) => {
                    self.has_begun_to_send = true;
                    self.append(state, session, part.unwrap_or_default(), ctx)?;
                    self.append_received(state, session, ctx)?;
                    self.is_request_read = session.as_mut().is_body_done();
                    if self.is_request_read {
                        self.outbound.finish();
                        self.is_sending |=
                            self.outbound.has_remaining() || self.upstream.needs_end();
                    }
                    if self.is_sending {
                        self.expect_write(session, ctx);
                    } else {
                        self.expect_response(session, ctx);
                    }
                }
                Step::Sent => {
                    self.is_sending = false;
                    if self.is_request_read {
                        self.expect_response(session, ctx);
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
                        return self.upgrade(state, session, reply.head, ctx).await;
                    }
                    let is_final = !status.is_informational();
                    let is_over = is_final && reply.body == ResponseBody::Done;
                    if is_final {
                        keep_alive = reply.keep_alive;
                        self.response_body = Some(reply.body);
                    }
                    let idle_since = is_over.then(|| self.note_end(ctx));
                    self.has_forwarded = true;
                    forward_head(state, session, reply.head, is_over, ctx).await?;
                    if let Some(since) = idle_since {
                        return Ok(self.is_reusable(keep_alive).then_some(since));
                    }
                }
                Step::ResponseBody(data) => {
                    let is_over = self.response_body == Some(ResponseBody::Done);
                    let idle_since = is_over.then(|| self.note_end(ctx));
                    let trailers = self.upstream.take_trailers();
                    let data = compressed_response::encode(data, is_over, ctx)?;
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
        state: &GatewayState,
        session: &mut Session,
        head: Box<ResponseHeader>,
        ctx: &mut RequestContext,
    ) -> Result<Option<Instant>> {
        let (true, UpstreamTransport::Http1(upstream)) = (
            is_upgrade(session, ctx) && headers::names_websocket(&head.headers),
            self.upstream,
        ) else {
            return Err(response::invalid_response("unrequested protocol upgrade"));
        };
        forward_head(state, session, head, false, ctx).await?;
        tunnel::run(upstream, session, ctx).await?;
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

    /// Starts the write timeout of the upstream.
    fn expect_write(&self, session: &Session, ctx: &RequestContext) {
        if let (Some(deadline), Some(UpstreamAttempt { pool, .. })) =
            (session.deadline(), &ctx.attempt)
        {
            deadline.expect_upstream(pool.config.write_timeout, Instant::now());
        }
    }

    /// Starts the read timeout of the upstream: the whole request has been sent.
    fn expect_response(&self, session: &Session, ctx: &RequestContext) {
        if let (Some(deadline), Some(UpstreamAttempt { pool, .. })) =
            (session.deadline(), &ctx.attempt)
        {
            deadline.expect_upstream(ctx.read_timeout(pool), Instant::now());
        }
    }

    /// Records the end of the response, and returns its time.
    fn note_end(&self, ctx: &RequestContext) -> Instant {
        if self.is_request_read && !self.is_sending {
            ctx.note_response_complete();
        }
        Instant::now()
    }

    /// Returns whether the connection can carry another request after the response.
    fn is_reusable(&self, keep_alive: bool) -> bool {
        keep_alive && self.is_request_read && !self.is_sending && self.send_error.is_none()
    }
}

async fn forward_head(
    state: &GatewayState,
    session: &mut Session,
    mut head: Box<ResponseHeader>,
    end_of_stream: bool,
    ctx: &mut RequestContext,
) -> Result<()> {
    response::note_response_head(session, &head, ctx);
    response::apply_response_headers(state, session, &mut head, ctx)?;
    session.write_head(head, end_of_stream).await
}
