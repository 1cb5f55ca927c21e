//! The pipeline: Pingora's hooks, each of which delegates to another module.
//!
//! Every request enters through [`ProxyHttp::request_filter`], which admits and [forwards](super::exchange)
//! it, or answers. Pingora's own forwarding is not used.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use pingora::modules::http::HttpModules;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::admission::admit_or_answer;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::{exchange, failure, request_record};
use crate::state::GatewayState;
use crate::state::request_context::{AdmittedRequest, ForwardingRecord, RequestContext};

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
        if let Some(admission) = admit_or_answer(&self.state, session, ctx).await? {
            let admitted = AdmittedRequest::new(&self.state, &ctx.request, admission);
            let record = ForwardingRecord::new(admitted.pool);
            exchange::forward(session, &admitted, ctx.forwarding.insert(record)).await?;
        }
        Ok(true)
    }

    /// Is not called: every request was forwarded before.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        Err(Error::new_in(ErrorType::InternalError))
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
