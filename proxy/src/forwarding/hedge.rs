//! Hedging: a second attempt at another address for a request that is not answered in time.
//!
//! On the fast path, for idempotent requests whose body is buffered. The first head of a response
//! wins; the other attempt is cancelled and its connection closed. On the streaming path, Pingora
//! drives one upstream connection at a time, so that requests are not hedged there.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Method;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::Session;
use tokio::time::Sleep;

use crate::downstream::session_ext::SessionExt;
use crate::forwarding::open_exchange::OpenExchange;
use crate::forwarding::outbound_data::OutboundData;
use crate::forwarding::{failure, failure_cause, upstream_request};
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::telemetry::metrics::HedgeResult;
use crate::upstream::{Abortable, ConnectionHeader, IdleCheck, UpstreamConnection};

/// A failed attempt.
struct FailedAttempt {
    error: Box<Error>,
    /// Whether the connection was established, and came from the idle pool.
    connected: Option<bool>,
}

/// An attempt in progress.
type RunningAttempt = Pin<Box<dyn Future<Output = Result<OpenExchange, FailedAttempt>> + Send>>;

/// The attempts in progress; at least one.
struct Race {
    /// That of the context.
    first: RunningAttempt,
    second: Option<SecondAttempt>,
}

/// The second attempt. While it runs, the end of the time to drain of one of the two addresses ends
/// the attempt at this address; of a single attempt, it ends the request.
struct SecondAttempt {
    running: RunningAttempt,
    attempt: UpstreamAttempt,
    drain: Arc<AttemptDrain>,
    first_drain: Arc<AttemptDrain>,
}

/// Whether the time to drain of an attempt's address is over.
#[derive(Default)]
struct AttemptDrain(AtomicBool);

/// The next event of a race.
enum RaceEvent {
    /// The time of the second attempt has come.
    Due,
    First(Result<OpenExchange, FailedAttempt>),
    Second(Result<OpenExchange, FailedAttempt>),
}

/// The request of both attempts.
struct HedgedRequest {
    head: BytesMut,
    body: Bytes,
    is_head_request: bool,
    /// The PROXY protocol header of connections for this client.
    connection_header: Option<ConnectionHeader>,
}

/// Returns the time after which this request is hedged; `None` if it is not.
pub(super) fn delay(session: &Session, ctx: &RequestContext) -> Option<Duration> {
    let attempt = ctx.attempt.as_ref()?;
    let delay = attempt.pool.hedge_delay()?;
    let may_repeat = ctx.attempts == 1 && session.req_header().method.is_idempotent();
    may_repeat.then_some(delay)
}

/// Sends a request, and once more after `delay` if it has not been answered. Afterwards, the attempt
/// of the context is the one that was answered first, or the last one that failed.
///
/// # Errors
/// That of the client, or of the last attempt, which may be retried.
pub(super) async fn race(
    session: &mut Session,
    body: &Bytes,
    delay: Duration,
    ctx: &mut RequestContext,
) -> Result<OpenExchange> {
    let Some(attempt) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let request = HedgedRequest {
        head: upstream_request::serialize_request(session.req_header(), ctx)?,
        body: body.clone(),
        is_head_request: session.req_header().method == Method::HEAD,
        connection_header: upstream_request::connection_header(session, &attempt.pool, ctx),
    };
    let mut race = Race {
        first: request.start(attempt),
        second: None,
    };
    let mut timer = pin!(tokio::time::sleep(delay));
    let mut is_due = false;
    loop {
        let timer = (!is_due).then_some(timer.as_mut());
        match race.next(session, timer).await? {
            RaceEvent::Due => {
                is_due = true;
                race.second = match second_attempt(session, ctx) {
                    Some(attempt) => {
                        Some(request.start_second(ctx.attempt.as_ref(), attempt).await)
                    }
                    None => None,
                };
            }
            RaceEvent::First(Ok(first)) => {
                if race.second.take().is_some() {
                    count(ctx, HedgeResult::Lost);
                    upstream_request::abort_when_drained(session, ctx).await;
                }
                return Ok(first);
            }
            RaceEvent::Second(Ok(first)) => {
                count(ctx, HedgeResult::Won);
                note_overtaken(ctx);
                ctx.attempt = race.second.take().map(|second| second.attempt);
                upstream_request::abort_when_drained(session, ctx).await;
                return Ok(first);
            }
            RaceEvent::First(Err(failed)) => match race.second.take() {
                None => return Err(failed.into_error(session, ctx)),
                // The second attempt is the only one now.
                Some(second) => {
                    failed.record(ctx.attempt.as_ref(), ctx);
                    ctx.attempt = Some(second.attempt);
                    upstream_request::abort_when_drained(session, ctx).await;
                    race.first = second.running;
                }
            },
            RaceEvent::Second(Err(failed)) => {
                count(ctx, HedgeResult::Failed);
                let second = race.second.take().map(|second| second.attempt);
                failed.record(second.as_ref(), ctx);
                upstream_request::abort_when_drained(session, ctx).await;
            }
        }
    }
}

/// Chooses another address for the second attempt; `None` if there is none, or if the budget is
/// exhausted.
fn second_attempt(session: &Session, ctx: &mut RequestContext) -> Option<UpstreamAttempt> {
    let first = ctx.attempt.as_ref()?;
    let now = Instant::now();
    let (client, caller) = (session.req_header(), ctx.caller.as_ref());
    let key = first.pool.hash_key(client, caller, ctx.client_address);
    let endpoint = &first.permit.endpoint;
    let permit = first.pool.pick(&key, Some(endpoint), now).ok();
    let permit = permit.filter(|permit| permit.endpoint.address != endpoint.address);
    let Some(permit) = permit.filter(|_| first.pool.try_hedge()) else {
        count(ctx, HedgeResult::Denied);
        return None;
    };
    let attempt = UpstreamAttempt {
        pool: Arc::clone(&first.pool),
        permit: Arc::new(permit),
        started: now,
        is_reused: None,
    };
    if let Some(deadline) = session.deadline() {
        let timeout = attempt.pool.config.connect_timeout + ctx.read_timeout(&attempt.pool);
        deadline.expect_upstream(timeout, now);
    }
    attempt.pool.count_attempt();
    ctx.attempts += 1;
    Some(attempt)
}

fn count(ctx: &RequestContext, result: HedgeResult) {
    if let Some(attempt) = &ctx.attempt {
        attempt.pool.count_hedge(result);
    }
}

/// Records the time for which the first attempt was not answered, so that the percentiles do not
/// consist of the fast answers only.
fn note_overtaken(ctx: &RequestContext) {
    if let Some(attempt) = &ctx.attempt {
        attempt.pool.note_overtaken(attempt.started.elapsed());
    }
}

// === impl HedgedRequest ===

impl HedgedRequest {
    /// Sends the request to the address of the second attempt.
    async fn start_second(
        &self,
        first: Option<&UpstreamAttempt>,
        attempt: UpstreamAttempt,
    ) -> SecondAttempt {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let watch = |attempt: &UpstreamAttempt| {
            let drain = Arc::new(AttemptDrain::default());
            let abortable = Arc::clone(&drain) as Arc<dyn Abortable>;
            attempt.permit.abort_when_drained(abortable, waker.clone());
            drain
        };
        SecondAttempt {
            running: self.start(&attempt),
            drain: watch(&attempt),
            first_drain: first.map(watch).unwrap_or_default(),
            attempt,
        }
    }

    /// Sends the request to the address of an attempt. The attempt ends when this is dropped.
    fn start(&self, attempt: &UpstreamAttempt) -> RunningAttempt {
        let (pool, endpoint) = (
            Arc::clone(&attempt.pool),
            Arc::clone(&attempt.permit.endpoint),
        );
        let mut outbound = OutboundData::new(self.head.clone());
        outbound.append(self.body.clone());
        let (is_head_request, header) = (self.is_head_request, self.connection_header.clone());
        Box::pin(async move {
            let idle = endpoint.idle.take(
                pool.config.idle_timeout,
                IdleCheck::LastPoll,
                header.as_ref(),
            );
            let was_idle = idle.is_some();
            let connected = match idle {
                Some(upstream) => Ok(upstream),
                None => {
                    let within = pool.config.connect_timeout;
                    UpstreamConnection::connect(endpoint.address, &endpoint.peer, within, header)
                        .await
                }
            };
            let mut upstream = connected.map_err(|error| FailedAttempt {
                error,
                connected: None,
            })?;
            let (mut is_sent, mut send_error) = (false, None);
            let answered = poll_fn(|cx| {
                // A response may arrive before the whole request was sent.
                if !is_sent && let Poll::Ready(sent) = upstream.poll_send(cx, &mut outbound) {
                    is_sent = true;
                    send_error = sent.err();
                }
                upstream.poll_response(cx, is_head_request)
            });
            match answered.await {
                Ok(response) => Ok(OpenExchange {
                    upstream,
                    was_idle,
                    outbound,
                    is_sending: !is_sent,
                    first_response: Some(response),
                    send_error,
                }),
                Err(error) => Err(FailedAttempt {
                    error: send_error.unwrap_or(error),
                    connected: Some(was_idle),
                }),
            }
        })
    }
}

// === impl Race ===

impl Race {
    /// Waits for the next event. Fails if the client disconnects or a deadline passes.
    async fn next(
        &mut self,
        session: &mut Session,
        mut timer: Option<Pin<&mut Sleep>>,
    ) -> Result<RaceEvent> {
        let mut client = pin!(session.as_mut().read_body_or_idle(true));
        poll_fn(|cx: &mut Context<'_>| {
            if let Poll::Ready(ended) = self.first.as_mut().poll(cx) {
                return Poll::Ready(Ok(RaceEvent::First(ended)));
            }
            if let Some(second) = &mut self.second {
                if let Poll::Ready(ended) = second.running.as_mut().poll(cx) {
                    return Poll::Ready(Ok(RaceEvent::Second(ended)));
                }
                if second.first_drain.is_over() {
                    return Poll::Ready(Ok(RaceEvent::First(Err(FailedAttempt::drained()))));
                }
                if second.drain.is_over() {
                    return Poll::Ready(Ok(RaceEvent::Second(Err(FailedAttempt::drained()))));
                }
            }
            if let Some(timer) = &mut timer
                && timer.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Ok(RaceEvent::Due));
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
}

// === impl AttemptDrain ===

impl AttemptDrain {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Abortable for AttemptDrain {
    fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl FailedAttempt ===

impl FailedAttempt {
    /// Creates the failure of an attempt that ends because its address was removed. As of an idle
    /// connection that was closed, the upstream is not at fault.
    fn drained() -> Self {
        Self {
            error: Error::new_up(ErrorType::ConnectionClosed),
            connected: Some(true),
        }
    }

    /// Returns the error of a request without a further attempt in progress.
    fn into_error(self, session: &Session, ctx: &RequestContext) -> Box<Error> {
        match self.connected {
            Some(was_idle) => failure::on_exchange_error(session, self.error, ctx, was_idle),
            None => failure::on_connect_error(ctx, self.error),
        }
    }

    /// Records the failure of an attempt beside which another one is in progress. An idle connection
    /// that the upstream has closed is no failure.
    fn record(&self, attempt: Option<&UpstreamAttempt>, ctx: &RequestContext) {
        if let (Some(attempt), None | Some(false)) = (attempt, self.connected) {
            let cause = failure_cause::of_attempt(&self.error);
            failure::record_attempt_failure(attempt, ctx, &self.error, cause);
        }
    }
}
