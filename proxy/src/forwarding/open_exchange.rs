//! The beginning of an exchange on the fast path: a connection and the request to be sent on it.

use bytes::Bytes;
use pingora_core::Result;
use pingora_proxy::Session;

use crate::forwarding::outbound_data::OutboundData;
use crate::forwarding::{failure, upstream_request};
use crate::state::request_context::RequestContext;
use crate::upstream::{Endpoint, IdleCheck, UpstreamConnection, UpstreamPool};

/// A connection, and what is to be sent on it.
pub(super) struct OpenExchange {
    pub(super) upstream: UpstreamConnection,
    /// Whether the connection came from the idle pool.
    pub(super) was_idle: bool,
    pub(super) outbound: OutboundData,
}

// === impl OpenExchange ===

impl OpenExchange {
    /// Takes an idle connection, or opens one. What is known of the request is to be sent.
    pub(super) async fn open(
        session: &Session,
        body: Option<&Bytes>,
        pool: &UpstreamPool,
        endpoint: &Endpoint,
        ctx: &RequestContext,
    ) -> Result<Self> {
        let check = match session.req_header().method.is_idempotent() {
            true => IdleCheck::LastPoll,
            false => IdleCheck::Now,
        };
        let header = upstream_request::connection_header(session, pool, ctx);
        let idle = endpoint
            .idle
            .take(pool.config.idle_timeout, check, header.as_ref());
        let was_idle = idle.is_some();
        let mut upstream = match idle {
            Some(upstream) => upstream,
            None => UpstreamConnection::connect(
                &endpoint.peer,
                &endpoint.pins,
                pool.config.connect_timeout,
                header,
            )
            .await
            .map_err(|error| failure::on_connect_error(ctx, error))?,
        };
        upstream.note_request(&session.req_header().headers);
        let head = upstream_request::serialize_request(session.req_header(), &pool.config, ctx)?;
        let mut outbound = OutboundData::new(head);
        outbound.append(match body {
            Some(body) => body.clone(),
            None => session.as_ref().get_retry_buffer().unwrap_or_default(),
        });
        Ok(Self {
            upstream,
            was_idle,
            outbound,
        })
    }
}
