//! Requests that are carried without Pingora: those that are whole when they are forwarded, over
//! HTTP/1.1, to upstreams that speak plain HTTP/1.1. Nearly all are.
//!
//! Pingora carries both directions at once, over two channels, because either may go on while the
//! other does. A request whose body is short has nothing left to go on with: it is read whole,
//! leaves in one write, and its answer is passed on as it comes, by one task. Everything else (long
//! and chunked bodies, upgrades, TLS or HTTP/2 to the upstream, HTTP/2 from the client) is
//! Pingora's. The rules are the same on both ways, and so are the functions that hold them: they
//! see a [`Client`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::BytesMut;
use http::header::{EXPECT, UPGRADE};
use http::{Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::{Error, ErrorType, Result};

use crate::admission::{authorize, receive};
use crate::downstream::client_connection::Wire;
use crate::downstream::client_exchange::Client;
use crate::forwarding::http1_session::Front;
use crate::forwarding::{failure, outcome, upstream_request};
use crate::message::head;
use crate::message::target::Target;
use crate::routing::router::Request;
use crate::routing::table::Found;
use crate::state::State;
use crate::state::request_context::{Attempt, Context};
use crate::state::runtime_config::Live;
use crate::upstream::{Body, Link};

/// Bytes of a body that is read before its request is forwarded.
pub(super) const WHOLE: u64 = 16 << 10;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// It has been answered, and its connection is there for the next one.
    Kept,
    /// It is over, and so is its connection.
    Closed,
    /// It is Pingora's; nothing of it has been read.
    NotHere,
}

/// Carries the request whose head has just passed, if it can go this way.
pub(crate) async fn serve(state: &State, wire: &mut Wire) -> Carried {
    if wire.body_left().is_none_or(|left| left > WHOLE) {
        return Carried::NotHere;
    }
    let mut ctx = state.begin();
    let Some(request) = head::to_request(wire.head()).filter(|request| is_for(request, &ctx.live))
    else {
        return Carried::NotHere;
    };
    let mut front = Front::new(wire, request);
    if state.stopping.load(Ordering::Relaxed) {
        front.close();
    }
    let carried = carry(state, &mut front, &mut ctx).await;
    if let Err(error) = &carried {
        let _told = failure::answer(&mut front, error, &mut ctx).await;
    }
    outcome::tell(
        state,
        &front,
        carried.as_ref().err().map(|error| &**error),
        &ctx,
    );
    drop(ctx);
    if carried.is_ok() && front.finish().await {
        Carried::Kept
    } else {
        Carried::Closed
    }
}

fn is_for(request: &RequestHeader, live: &Live) -> bool {
    let is_simple = ![EXPECT, UPGRADE]
        .iter()
        .any(|name| request.headers.contains_key(name));
    request.version == Version::HTTP_11
        && is_simple
        && (live.is_all_plain || goes_to_plain(request, live))
}

/// Looks the route up before it is admitted, where some upstreams are Pingora's.
fn goes_to_plain(request: &RequestHeader, live: &Live) -> bool {
    let Ok(target) = Target::parse(request.raw_path()) else {
        return true;
    };
    let wanted = Request {
        host: authorize::host(request),
        path: target.path,
        query: target.query,
        method: request.method.as_str(),
        headers: &request.headers,
    };
    match live.table.find(&wanted) {
        Found::Route(route) => live.is_plain(&live.table.routes[route]),
        Found::Method { .. } | Found::Nothing => true,
    }
}

/// Forwards the request if it may go on, again where that may help, and passes the answer on.
async fn carry(state: &State, front: &mut Front<'_>, ctx: &mut Context) -> Result<()> {
    if receive(state, front, ctx).await? {
        return Ok(());
    }
    let body = front.read_body(ctx).await?;
    loop {
        upstream_request::choose(state, front, ctx)?;
        match attempt(state, front, &body, ctx).await {
            Err(error) if error.retry() => {}
            done => return done,
        }
    }
}

async fn attempt(
    state: &State,
    front: &mut Front<'_>,
    body: &[u8],
    ctx: &mut Context,
) -> Result<()> {
    let Some(chosen) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let (pool, endpoint) = (
        Arc::clone(&chosen.pool),
        Arc::clone(&chosen.ticket.endpoint),
    );
    let kept = endpoint.kept.take(pool.config.idle_timeout);
    let was_kept = kept.is_some();
    let mut link = match kept {
        Some(link) => link,
        None => Link::connect(endpoint.address, pool.config.connect_timeout)
            .await
            .map_err(|error| failure::to_connect(ctx, error))?,
    };
    match exchange(state, front, &mut link, body, ctx).await {
        Ok(Some(since)) => endpoint.kept.keep(link, since),
        Ok(None) => {}
        Err(error) => return Err(failure::while_proxying(front, error, ctx, was_kept)),
    }
    Ok(())
}

/// Since when the connection can carry another request, if it can.
async fn exchange(
    state: &State,
    front: &mut Front<'_>,
    link: &mut Link,
    body: &[u8],
    ctx: &mut Context,
) -> Result<Option<Instant>> {
    let message = upstream_request::message(front.request(), body, ctx)?;
    let to_head = front.request().method == Method::HEAD;
    send(front, link, message, ctx).await?;
    let mut answer = front.beside(|cx| link.poll_answer(cx, to_head)).await?;
    while answer.head.status.is_informational()
        && answer.head.status != StatusCode::SWITCHING_PROTOCOLS
    {
        pass_head(state, front, answer.head, false, ctx).await?;
        answer = front
            .beside(|cx| link.poll_answer(cx, to_head))
            .await
            .map_err(|mut error| {
                error.set_retry(false);
                error
            })?;
    }
    if answer.head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(outcome::invalid_answer(
            "an upgrade that the request did not ask for",
        ));
    }
    let mut rest = answer.body;
    let mut is_written = rest == Body::Done;
    let mut since = Instant::now();
    if is_written {
        ctx.note_answer_complete();
    }
    pass_head(state, front, answer.head, is_written, ctx).await?;
    while let Some(data) = front.beside(|cx| link.poll_data(cx, &mut rest)).await? {
        is_written = rest == Body::Done;
        if is_written {
            since = Instant::now();
            ctx.note_answer_complete();
        }
        front.write_body(Some(data), is_written).await?;
    }
    if !is_written {
        front.write_body(None, true).await?;
    }
    Ok(answer.keep.then_some(since))
}

/// Writes the request within the upstream's time for that; then its time to answer begins.
async fn send(
    front: &mut Front<'_>,
    link: &mut Link,
    mut message: BytesMut,
    ctx: &Context,
) -> Result<()> {
    let Some(Attempt { pool, .. }) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let began = Instant::now();
    front.expect_upstream(pool.config.write_timeout, began);
    let mut has_waited = false;
    front
        .beside(|cx| {
            let sent = link.poll_send(cx, &mut message);
            has_waited |= sent.is_pending();
            sent
        })
        .await?;
    // Nearly every request is taken at once, and its end is its beginning: the clock is not read
    // again.
    let sent_at = if has_waited { Instant::now() } else { began };
    front.expect_upstream(ctx.read_timeout(pool), sent_at);
    Ok(())
}

async fn pass_head(
    state: &State,
    front: &mut Front<'_>,
    mut head: ResponseHeader,
    is_all: bool,
    ctx: &mut Context,
) -> Result<()> {
    outcome::note_response(front, &head, ctx);
    outcome::dress(state, front, &mut head, ctx)?;
    front.write_head(head, is_all).await
}
