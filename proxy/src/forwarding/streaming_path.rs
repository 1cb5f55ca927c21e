//! Pingora's hooks, as a table of contents: each one delegates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use postern_common::Code;

use crate::admission::receive;
use crate::downstream::client_exchange::Client;
use crate::forwarding::{failure, outcome, upstream_request};
use crate::state::State;
use crate::state::request_context::Context;

/// The gateway, as Pingora sees it.
pub(crate) struct Gateway {
    state: Arc<State>,
}

impl Gateway {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self { state }
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        self.state.begin()
    }

    /// None: Pingora's default adds compression, which no route asks for.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        // HTTP/1.0 knows no interim responses (RFC 9110 section 15.2).
        if session.req_header().version == Version::HTTP_10 {
            session.set_ignore_info_resp(true);
        }
        receive(&self.state, session, ctx).await
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<Box<HttpPeer>> {
        upstream_request::choose(&self.state, session, ctx)?;
        upstream_request::peer(session, ctx)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream_request: &mut RequestHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        // There is a connection now: what remains is the time of the answer.
        if let (Some(watch), Some(attempt)) = (session.watch(), &ctx.attempt) {
            watch.expect_upstream(ctx.read_timeout(&attempt.pool), Instant::now());
        }
        upstream_request::check_protocol(session.req_header(), upstream_request, ctx)?;
        upstream_request::prepare(session.req_header(), upstream_request, ctx)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        _end_of_stream: bool,
        ctx: &mut Context,
    ) -> Result<()> {
        ctx.body_bytes += body.as_ref().map_or(0, Bytes::len) as u64;
        let most = ctx.route().map_or(0, |route| route.body_bytes);
        if ctx.body_bytes > most && !session.was_upgraded() {
            return Err(upstream_request::refuse(ctx, Code::BodyTooLarge));
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        outcome::check_answer(session, response, ctx)?;
        outcome::note_response(session, response, ctx);
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        session: &mut Session,
        _body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Context,
    ) -> Result<Option<Duration>> {
        if end_of_stream {
            outcome::note_answer_complete(session, ctx);
        }
        Ok(None)
    }

    fn upstream_response_trailer_filter(
        &self,
        session: &mut Session,
        _trailers: &mut HeaderMap,
        ctx: &mut Context,
    ) -> Result<()> {
        outcome::note_answer_complete(session, ctx);
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        outcome::dress(&self.state, session, response, ctx)
    }

    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        _ctx: &mut Context,
    ) -> Result<Option<Bytes>> {
        outcome::strip_trailers(trailers);
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Context,
        error: Box<Error>,
    ) -> Box<Error> {
        failure::to_connect(ctx, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Context,
        client_reused: bool,
    ) -> Box<Error> {
        failure::while_proxying(session, error, ctx, client_reused)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Context,
    ) -> FailToProxy {
        failure::answer(session, error, ctx).await
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Context) {
        outcome::tell(&self.state, session, error, ctx);
    }

    /// An access event tells it, with its code.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Context, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Context,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}
