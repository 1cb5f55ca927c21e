//! Requests that are forwarded whole, to upstreams that speak plain HTTP/1.1: nearly all there are.
//!
//! Pingora carries both directions at once, over two channels, because either may go on while the other does. A
//! request whose body is short has nothing left to go on with: it is read whole, leaves in one write, and its answer is
//! passed on as it comes, by one task. Everything else (long and chunked bodies, upgrades, TLS, HTTP/2 on either side)
//! goes through Pingora. The rules are the same on both ways, and so are the functions that hold them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context as Task, Poll};
use std::time::Instant;

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{Method, StatusCode, Version};
use pingora::http::ResponseHeader;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::Session;

use super::{failure, forward, outcome, watch, wire};
use crate::context::Context;
use crate::state::State;
use crate::upstream::{Body, Link};

/// Bytes of a body that is read before its request is forwarded.
const WHOLE: u64 = 16 << 10;

/// Whether the request can go this way.
pub(super) fn is_for(session: &Session, ctx: &Context) -> bool {
    let head = session.req_header();
    let is_whole = match head.headers.get(CONTENT_LENGTH) {
        Some(length) => {
            length.to_str().ok().and_then(|text| text.parse().ok()).is_some_and(|length: u64| length <= WHOLE)
        }
        None => true,
    };
    let is_simple =
        is_whole && ![TRANSFER_ENCODING, UPGRADE, EXPECT].iter().any(|name| head.headers.contains_key(name));
    is_simple
        && head.version == Version::HTTP_11
        && wire(session).is_some()
        && ctx.route().is_some_and(|route| ctx.live.is_plain(route))
}

/// Forwards the request, again where that may help, and passes the answer on.
pub(super) async fn carry(state: &State, session: &mut Session, ctx: &mut Context) -> Result<()> {
    let mut body = BytesMut::new();
    if session.req_header().headers.contains_key(CONTENT_LENGTH) {
        while let Some(part) = session.as_mut().read_request_body().await.map_err(Error::into_down)? {
            body.extend_from_slice(&part);
        }
    }
    loop {
        forward::choose(state, session, ctx)?;
        match attempt(state, session, &body, ctx).await {
            Err(error) if error.retry() => {}
            done => return done,
        }
    }
}

async fn attempt(state: &State, session: &mut Session, body: &[u8], ctx: &mut Context) -> Result<()> {
    let Some(chosen) = &ctx.attempt else { return Err(Error::new_in(ErrorType::InternalError)) };
    let (pool, endpoint) = (chosen.pool.clone(), chosen.ticket.endpoint.clone());
    let kept = endpoint.kept.take(pool.config.idle_timeout);
    let was_kept = kept.is_some();
    let mut link = match kept {
        Some(link) => link,
        None => Link::connect(endpoint.address, pool.config.connect_timeout)
            .await
            .map_err(|error| failure::to_connect(ctx, error))?,
    };
    match exchange(state, session, &mut link, body, ctx).await {
        Ok(true) => endpoint.kept.keep(link, Instant::now()),
        Ok(false) => {}
        Err(error) => return Err(failure::while_proxying(session, error, ctx, was_kept)),
    }
    Ok(())
}

/// Whether the connection can carry another request.
async fn exchange(
    state: &State,
    session: &mut Session,
    link: &mut Link,
    body: &[u8],
    ctx: &mut Context,
) -> Result<bool> {
    let mut message = forward::message(session.req_header(), body, ctx)?;
    let to_head = session.req_header().method == Method::HEAD;
    if let (Some(watch), Some(attempt)) = (watch(session), &ctx.attempt) {
        watch.expect_upstream(ctx.read_timeout(&attempt.pool), Instant::now());
    }
    beside(session, |cx| link.poll_send(cx, &mut message)).await?;
    let mut answer = beside(session, |cx| link.poll_answer(cx, to_head)).await?;
    while answer.head.status.is_informational() && answer.head.status != StatusCode::SWITCHING_PROTOCOLS {
        pass_head(state, session, answer.head, false, ctx).await?;
        answer = beside(session, |cx| link.poll_answer(cx, to_head)).await.map_err(|mut error| {
            error.set_retry(false);
            error
        })?;
    }
    if answer.head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(
            Error::explain(ErrorType::InvalidHTTPHeader, "an upgrade that nobody asked for").into_up()
        );
    }
    let mut rest = answer.body;
    let mut is_written = false;
    pass_head(state, session, answer.head, rest == Body::Done, ctx).await?;
    while let Some(data) = beside(session, |cx| link.poll_data(cx, &mut rest)).await? {
        is_written = rest == Body::Done;
        session.write_response_body(Some(data), is_written).await.map_err(Error::into_down)?;
    }
    if !is_written {
        session.write_response_body(None, true).await.map_err(Error::into_down)?;
    }
    Ok(answer.keep)
}

async fn pass_head(
    state: &State,
    session: &mut Session,
    mut head: ResponseHeader,
    is_all: bool,
    ctx: &mut Context,
) -> Result<()> {
    outcome::note_response(session, &head, ctx);
    outcome::dress(state, session, &mut head, ctx)?;
    session.write_response_header(Box::new(head), is_all).await.map_err(Error::into_down)
}

/// Waits for the upstream, unless the client leaves before, or the time is over.
async fn beside<T>(
    session: &mut Session,
    mut upstream: impl FnMut(&mut Task<'_>) -> Poll<Result<T>>,
) -> Result<T> {
    let mut client = pin!(session.as_mut().read_body_or_idle(true));
    poll_fn(|cx| match upstream(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => client.as_mut().poll(cx).map(|left| match left {
            Ok(_) => Err(Error::new_down(ErrorType::ConnectionClosed)),
            Err(error) => Err(error.into_down()),
        }),
    })
    .await
}
