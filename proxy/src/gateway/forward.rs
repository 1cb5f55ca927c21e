//! What an upstream is sent: the client's request, without what only the gateway may say, and with what it says.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::RequestHeader;
use pingora_core::upstreams::peer::{H1UpgradePolicy, HttpPeer};
use pingora_core::{Error, OrErr, Result};
use pingora_proxy::Session;
use postern_common::Code;
use postern_common::token::Caller;

use super::{REFUSED, watch};
use crate::config::{Rewrite, Route};
use crate::context::Context;
use crate::headers;
use crate::upstream::tunnel;

/// Ends the request with this code.
pub(super) fn refuse(ctx: &mut Context, code: Code) -> Box<Error> {
    ctx.refused = Some(code);
    Error::explain(REFUSED, code.as_str())
}

/// How the address is spoken to for this route.
pub(super) fn peer(template: &HttpPeer, route: &Route, session: &Session) -> Box<HttpPeer> {
    let mut peer = Box::new(template.clone());
    if watch(session).is_some() {
        // The client's side watches over it, without a timer for each read, and from the end of the request on:
        // Pingora's own would run while the client is still sending.
        peer.options.read_timeout = None;
    }
    if route.websocket && session.is_upgrade_req() {
        tunnel::prepare(&mut peer);
    } else {
        peer.options.http_upstream_request_policy.h1_upgrade = H1UpgradePolicy::Deny;
    }
    peer
}

/// Takes out what only the gateway may say, in every spelling, and says it. This runs after Pingora's own
/// removal of hop-by-hop fields, so that nothing a client sends can take it out again.
///
/// The fields are written into the bare map: Pingora's own insertion costs two allocations a field.
pub(super) fn prepare(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let empty = http::Request::new(()).into_parts().0;
    let mut parts = http::request::Parts::from(std::mem::replace(request, RequestHeader::from(empty)));
    let values = Values::build(ctx);
    let headers = &mut parts.headers;
    strip(headers);
    headers.reserve(10);
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert(&FORWARDED_HOST, host);
    }
    headers.insert(&REQUEST_ID, values.get(Values::ID)?);
    headers.insert(&TRACEPARENT, values.get(Values::TRACE)?);
    headers.insert(&FORWARDED_FOR, values.get(Values::CLIENT)?);
    headers.insert(&FORWARDED_PROTO, HeaderValue::from_static(if ctx.is_tls { "https" } else { "http" }));
    if let Some(caller) = &ctx.caller {
        let (kind, is_service) = match caller {
            Caller::User(_) => ("user", false),
            Caller::Service(_) => ("service", true),
        };
        headers.insert(&KIND, HeaderValue::from_static(kind));
        headers.insert(&SUBJECT, values.get(Values::SUBJECT)?);
        headers.insert(&SCOPES, values.get(Values::SCOPES)?);
        if is_service {
            headers.insert(&SERVICE, values.get(Values::SERVICE)?);
        }
    }
    *request = RequestHeader::from(parts);
    match ctx.route().and_then(|route| route.rewrite.as_ref()) {
        Some(rewrite) => apply(rewrite, request),
        None => Ok(()),
    }
}

pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static KIND: HeaderName = HeaderName::from_static("x-postern-kind");
static SUBJECT: HeaderName = HeaderName::from_static("x-postern-subject");
static SERVICE: HeaderName = HeaderName::from_static("x-postern-service");
static SCOPES: HeaderName = HeaderName::from_static("x-postern-scopes");

fn strip(headers: &mut HeaderMap) {
    let reserved: Vec<HeaderName> =
        headers.keys().filter(|name| headers::is_reserved(name.as_str())).cloned().collect();
    for name in reserved {
        headers.remove(name);
    }
}

fn apply(rewrite: &Rewrite, request: &mut RequestHeader) -> Result<()> {
    let target = request.raw_path();
    let rest = target.strip_prefix(rewrite.strip.as_bytes()).unwrap_or(target);
    let mut path = rewrite.add.clone().into_bytes();
    if !rest.starts_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(rest);
    request.set_raw_path(&path)
}

/// The values of one request, in one allocation.
struct Values {
    bytes: Bytes,
    ends: [usize; 6],
}

impl Values {
    const ID: usize = 0;
    const TRACE: usize = 1;
    const CLIENT: usize = 2;
    const SUBJECT: usize = 3;
    const SCOPES: usize = 4;
    const SERVICE: usize = 5;

    fn build(ctx: &Context) -> Self {
        let mut text = BytesMut::with_capacity(256);
        let mut ends = [0; 6];
        let _memory_only = write!(text, "{}", ctx.id.hyphenated());
        ends[Self::ID] = text.len();
        let _memory_only = write!(text, "{}", ctx.trace);
        ends[Self::TRACE] = text.len();
        let _memory_only = match ctx.client {
            Some(client) => write!(text, "{client}"),
            None => write!(text, "unknown"),
        };
        ends[Self::CLIENT] = text.len();
        if let Some(caller) = &ctx.caller {
            text.extend_from_slice(caller.subject().as_bytes());
        }
        ends[Self::SUBJECT] = text.len();
        for (at, scope) in ctx.caller.as_ref().map(Caller::scopes).unwrap_or_default().iter().enumerate() {
            text.extend_from_slice(if at > 0 { b" " } else { b"" });
            text.extend_from_slice(scope.as_bytes());
        }
        ends[Self::SCOPES] = text.len();
        if let Some(service) = ctx.caller.as_ref().and_then(Caller::service) {
            text.extend_from_slice(service.service_id.as_bytes());
        }
        ends[Self::SERVICE] = text.len();
        Self { bytes: text.freeze(), ends }
    }

    fn get(&self, at: usize) -> Result<HeaderValue> {
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        HeaderValue::from_maybe_shared(self.bytes.slice(begin..self.ends[at]))
            .or_err(REFUSED, "an identity that no header can hold")
    }
}
