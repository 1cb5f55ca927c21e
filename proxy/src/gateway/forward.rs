//! What an upstream is sent: the client's request, without what only the gateway may say, and with what it says.

use http::HeaderValue;
use http::header::HOST;
use pingora::http::RequestHeader;
use pingora_core::upstreams::peer::{H1UpgradePolicy, HttpPeer};
use pingora_core::{Error, OrErr, Result};
use pingora_proxy::Session;
use postern_common::Code;

use super::{REFUSED, watch};
use crate::config::{Rewrite, Route};
use crate::context::Context;
use crate::injection::Injection;
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
pub(super) fn prepare(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let empty = http::Request::new(()).into_parts().0;
    let mut parts = http::request::Parts::from(std::mem::replace(request, RequestHeader::from(empty)));
    // Towards HTTP/2 Pingora leaves a stream's authority in the target alone, where a rewrite would lose it; from
    // `Host` it makes it anew, and the scheme with it.
    if let (None, Some(authority)) = (parts.headers.get(HOST), parts.uri.authority()) {
        let authority = HeaderValue::from_str(authority.as_str()).or_err(REFUSED, "an authority")?;
        parts.headers.insert(HOST, authority);
    }
    let said = Injection {
        id: ctx.id,
        trace: ctx.trace,
        client: ctx.client,
        is_tls: ctx.is_tls,
        caller: ctx.caller.as_ref(),
    };
    said.write(&mut parts.headers).or_err(REFUSED, "an identity that no header can hold")?;
    *request = RequestHeader::from(parts);
    match ctx.route().and_then(|route| route.rewrite.as_ref()) {
        Some(rewrite) => apply(rewrite, request),
        None => Ok(()),
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
