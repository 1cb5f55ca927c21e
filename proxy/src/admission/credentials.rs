//! Credentials in other places than `Authorization`, for clients that cannot set it: API keys in a
//! field or in the query, and the token of a browser's WebSocket among its subprotocols.
//!
//! They are taken out of the request, so that no upstream, log, redirect and cache key has them.

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Uri};
use pingora::http::RequestHeader;
use postern_core::{Code, Problem, Secret};
use postern_http::message::headers;
use url::form_urlencoded;

use crate::config::{ApiKeyConfig, Route};

/// A credential that was not in `Authorization`, and was taken out of the request.
#[derive(Debug)]
pub(super) enum Credential {
    ApiKey(Secret),
    /// What else would be a Bearer token.
    Token(Secret),
}

/// The subprotocol that precedes a token, both of which a browser offers as in `new WebSocket(url,
/// ["bearer", token])`. The response names it if the upstream selects no subprotocol, because
/// browsers close a connection without the choice of an offered one (WHATWG WebSockets, "establish a
/// WebSocket connection").
pub(crate) const TOKEN_SUBPROTOCOL: &str = "bearer";

/// Takes the API key out of the places in which keys are accepted.
///
/// # Errors
/// The target without the key cannot be represented, which does not occur.
pub(super) fn take_api_key(
    head: &mut RequestHeader,
    places: &ApiKeyConfig,
) -> Result<Option<Credential>, Problem> {
    let header = places.header.as_ref();
    let in_header = header.and_then(|name| take_field(head, name));
    let in_query = match &places.query {
        Some(name) => take_parameter(head, name).map_err(|_| Code::Internal)?,
        None => None,
    };
    Ok(in_header.or(in_query).map(Credential::ApiKey))
}

/// Removes a field in each spelling that upstreams read as this name.
fn take_field(head: &mut RequestHeader, name: &HeaderName) -> Option<Secret> {
    let value = head.headers.get(name).and_then(|value| value.to_str().ok());
    let value = value.map(Secret::from);
    let is_same = |it: &&HeaderName| headers::is_same_folded(it.as_str(), name.as_str());
    while let Some(spelling) = head.headers.keys().find(is_same).cloned() {
        head.remove_header(&spelling);
    }
    value
}

/// Removes each query parameter of this name, also with escapes in it.
fn take_parameter(head: &mut RequestHeader, name: &str) -> Result<Option<Secret>, http::Error> {
    let target = head.uri.path_and_query();
    // A target that is no URI is rejected.
    let target = target.filter(|target| target.as_str().as_bytes() == head.raw_path());
    let Some((path, query)) = target.and_then(|target| Some((target.path(), target.query()?)))
    else {
        return Ok(None);
    };
    let (mut key, mut rest) = (None, Vec::new());
    for pair in query.split('&') {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((found, value)) if found == name => {
                key.get_or_insert_with(|| Secret::from(&*value));
            }
            Some(_) | None => rest.push(pair),
        }
    }
    if key.is_none() {
        return Ok(None);
    }
    let target = match rest.as_slice() {
        [] => path.to_owned(),
        rest => format!("{path}?{}", rest.join("&")),
    };
    let mut parts = head.uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target)?);
    head.set_uri(Uri::from_parts(parts)?);
    Ok(key)
}

/// Takes the token of a WebSocket upgrade out of the offered subprotocols, if the route accepts it
/// there.
pub(super) fn take_subprotocol_token(
    head: &mut RequestHeader,
    route: &Route,
) -> Option<Credential> {
    let settings = &route.settings;
    let is_accepted = settings.websocket && settings.websocket_token;
    if !is_accepted || !headers::is_websocket_upgrade(head) {
        return None;
    }
    let fields = head.headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let fields = fields.filter_map(|field| field.to_str().ok());
    let items = fields.flat_map(|field| field.split(',')).map(str::trim);
    let mut offered: Vec<String> = items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect();
    let mut first = None;
    while let Some(at) = offered.iter().position(|item| item == TOKEN_SUBPROTOCOL) {
        let end = offered.len().min(at + 2);
        let token = offered.drain(at..end).nth(1);
        first.get_or_insert_with(|| Secret::from(token.unwrap_or_default()));
    }
    let token = first?;
    head.remove_header(&SEC_WEBSOCKET_PROTOCOL);
    if let (false, Ok(rest)) = (
        offered.is_empty(),
        HeaderValue::try_from(offered.join(", ")),
    ) {
        let _always_added = head.insert_header(SEC_WEBSOCKET_PROTOCOL, rest);
    }
    Some(Credential::Token(token))
}
