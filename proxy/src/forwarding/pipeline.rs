//! The pipeline: Pingora's hooks, each of which delegates to another module.
//!
//! Every request enters through [`ProxyHttp::request_filter`], which admits or answers it.
//! [`ProxyHttp::proxy_upstream_filter`] forwards it on the [fast path](super::fast_path) if it can;
//! otherwise the later hooks take part in Pingora's own forwarding, the streaming path.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::admission::admit_or_answer;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::{
    compressed_response, failure, fast_path, mirror, request_record, response, upstream_request,
};
use crate::state::GatewayState;
use crate::state::request_context::{ForwardingPath, RequestContext};

/// The implementation of Pingora's proxy hooks.
pub(crate) struct GatewayProxy {
    state: Arc<GatewayState>,
}

impl GatewayProxy {
    pub(crate) fn new(state: Arc<GatewayState>) -> Self {
        Self { state }
    }
}

#[async_trait]
impl ProxyHttp for GatewayProxy {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        self.state.new_context()
    }

    /// Installs no modules. Pingora's default adds compression.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<bool> {
        if self.state.is_draining.load(Ordering::Relaxed) {
            session.close_after_response();
        }
        // HTTP/1.0 has no interim responses (RFC 9110 section 15.2).
        if session.req_header().version == Version::HTTP_10 {
            session.set_ignore_info_resp(true);
        }
        admit_or_answer(&self.state, session, ctx).await
    }

    /// Forwards the request on the fast path, if it is eligible.
    async fn proxy_upstream_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<bool> {
        if ctx.route().is_some_and(|route| route.mirror.is_some()) {
            mirror::begin(&self.state, session, ctx)?;
        }
        if !fast_path::is_eligible(session, ctx) {
            ctx.path = Some(ForwardingPath::Streaming);
            return Ok(true);
        }
        ctx.path = Some(ForwardingPath::Fast);
        fast_path::forward(&self.state, session, ctx).await?;
        Ok(false)
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        upstream_request::choose_endpoint(&self.state, session, ctx)?;
        upstream_request::abort_when_drained(session, ctx).await;
        // Another attempt begins with the first part of the body.
        if let Some(capture) = &mut ctx.mirror {
            capture.body.clear();
        }
        upstream_request::build_peer(session, ctx)
    }

    /// Checks the certificate of an HTTP/2 connection: those of HTTP/1.1 are checked when they are
    /// opened, and plain to Pingora.
    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        _is_reused: bool,
        peer: &HttpPeer,
        _fd: RawFd,
        digest: Option<&Digest>,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        match &ctx.attempt {
            Some(attempt) if peer.is_tls() => {
                let connection = digest.and_then(|digest| digest.ssl_digest.as_deref());
                attempt.permit.endpoint.pins.check(connection)
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream_request: &mut RequestHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        // The connection is established: from now on the read timeout applies.
        if let (Some(deadline), Some(attempt)) = (session.deadline(), &ctx.attempt) {
            deadline.expect_upstream(ctx.read_timeout(&attempt.pool), Instant::now());
        }
        upstream_request::check_protocol(session.req_header(), upstream_request, ctx)?;
        upstream_request::prepare_headers(session.req_header(), upstream_request, ctx)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        let part = body.as_deref().unwrap_or_default();
        upstream_request::count_body(session, part, ctx)?;
        if ctx.mirror.is_some() {
            mirror::note_body(&self.state, session.req_header(), part, end_of_stream, ctx)?;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::check_response(session, response, ctx)?;
        response::note_response_head(session, response, ctx);
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        session: &mut Session,
        _body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        if end_of_stream {
            response::note_response_complete(session, ctx);
        }
        Ok(None)
    }

    fn upstream_response_trailer_filter(
        &self,
        session: &mut Session,
        _trailers: &mut HeaderMap,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::note_response_complete(session, ctx);
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::apply_response_headers(&self.state, session, response, ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        *body = compressed_response::encode(body.take(), end_of_stream, ctx)?;
        Ok(None)
    }

    /// Removes fields of the trailers. The end of a compressed body replaces the trailers, because
    /// it can only be sent before them (RFC 9110 section 6.5.1 allows to drop them).
    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        ctx: &mut RequestContext,
    ) -> Result<Option<Bytes>> {
        response::strip_trailers(trailers);
        compressed_response::encode(None, true, ctx)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut RequestContext,
        error: Box<Error>,
    ) -> Box<Error> {
        failure::on_connect_error(ctx, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut RequestContext,
        client_reused: bool,
    ) -> Box<Error> {
        failure::on_exchange_error(session, error, ctx, client_reused)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut RequestContext,
    ) -> FailToProxy {
        failure::write_error_response(session, error, ctx).await
    }

    async fn logging(
        &self,
        session: &mut Session,
        error: Option<&Error>,
        ctx: &mut RequestContext,
    ) {
        request_record::record_request(&self.state, session, error, ctx);
    }

    /// Suppresses Pingora's error log: the access event contains the problem code.
    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &RequestContext,
        _error: &Error,
    ) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &RequestContext,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}
