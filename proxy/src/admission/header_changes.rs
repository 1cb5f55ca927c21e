//! Changes of header fields that the configuration of a route describes.

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use postern_http::message::headers::{is_same_folded, strip};

use crate::admission::authorize::request_authority;
use crate::config::{HeaderChanges, Template};
use crate::routing::variables::RequestVariables;
use crate::state::request_context::ReceivedRequest;
use crate::upstream::UpstreamPool;

/// Returns the values of the variables of a request, for which an upstream may have been chosen.
pub(crate) fn variables<'a>(
    head: &'a RequestHeader,
    request: &'a ReceivedRequest,
    upstream: Option<&'a UpstreamPool>,
) -> RequestVariables<'a> {
    let target = std::str::from_utf8(head.raw_path()).unwrap_or_default();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    RequestVariables {
        request_id: request.id,
        client_address: request.client_address,
        authority: request_authority(head),
        path,
        query,
        method: head.method.as_str(),
        is_tls: request.is_tls,
        route: request.matched_route().map_or("", |route| &route.name),
        upstream: upstream.map_or("", |pool| &pool.config.name),
        caller: request.caller.as_ref(),
    }
}

/// Applies the changes to the fields of a message. Those of other spellings are removed or replaced
/// as well, because upstreams such as CGI read them as the same field.
pub(crate) fn apply(
    changes: &HeaderChanges,
    headers: &mut HeaderMap,
    variables: &RequestVariables<'_>,
) {
    let replaced = changes.set.iter().map(|(name, _)| name);
    for name in changes.remove.iter().chain(replaced) {
        strip(headers, |other| is_same_folded(other, name.as_str()));
    }
    for (name, template) in &changes.set {
        if let Some(value) = field_value(name, template, variables) {
            headers.insert(name, value);
        }
    }
    for (name, template) in &changes.add {
        if let Some(value) = field_value(name, template, variables) {
            headers.append(name, value);
        }
    }
}

/// Edits the fields of a response in the map of `http`.
pub(crate) fn edit_headers(response: &mut ResponseHeader, edit: impl FnOnce(&mut HeaderMap)) {
    let empty = http::Response::new(()).into_parts().0;
    let mut parts =
        http::response::Parts::from(std::mem::replace(response, ResponseHeader::from(empty)));
    edit(&mut parts.headers);
    *response = ResponseHeader::from(parts);
}

/// Returns the value of a field. Returns `None`, and the field is not sent, if the value is empty or
/// contains a byte that a field must not contain (RFC 9110 section 5.5), such as a line break in the
/// subject of a token.
fn field_value(
    name: &HeaderName,
    template: &Template,
    variables: &RequestVariables<'_>,
) -> Option<HeaderValue> {
    let text = variables.expand(template);
    if text.is_empty() {
        return None;
    }
    match HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
        Ok(value) => Some(value),
        Err(_) => {
            let request_id = variables.request_id;
            tracing::debug!(%request_id, field = %name, "header field omitted: invalid value");
            None
        }
    }
}
