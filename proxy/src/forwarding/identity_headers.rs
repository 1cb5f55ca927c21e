//! The header fields in which the gateway tells an upstream who is calling.
//!
//! Reserved fields of the client are removed in every spelling before these are set. Fields are
//! inserted into the `http` header map, because Pingora's insertion costs two allocations per
//! field.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, HOST, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};
use postern_core::network::write_element;
use postern_core::token::Caller;
use postern_core::trace::TRACESTATE;
use postern_http::message::headers;
use uuid::Uuid;

use crate::api_keys::has_api_key;
use crate::telemetry::trace_context::TraceContext;

/// The identity and origin of one request.
#[derive(Clone, Copy, Debug)]
pub struct IdentityHeaders<'a> {
    /// The request id.
    pub id: Uuid,
    /// The trace context of the forwarded request.
    pub trace: TraceContext,
    /// The client address, as reported by trusted proxies.
    pub client: Option<IpAddr>,
    /// Whether the client uses TLS.
    pub is_tls: bool,
    /// The caller; `None` on a public route.
    pub caller: Option<&'a Caller>,
    /// Names of fields that only an external authorization service may set. Those of the client are
    /// removed.
    pub replaced: &'a [HeaderName],
    /// Fields that it has set.
    pub added: &'a [(HeaderName, HeaderValue)],
    /// Whether an `Authorization` that contains an API key is removed, also on public routes.
    pub hides_api_keys: bool,
    /// Whether to add `Forwarded` (RFC 7239) to the `X-Forwarded-` fields.
    pub forwarded: bool,
    /// The `Host` that the upstream expects; `None` for the requested one.
    pub host: Option<&'a HeaderValue>,
    /// The requested host that a trusted proxy has reported.
    pub forwarded_host: Option<&'a HeaderValue>,
    /// Returns whether a field of this name is removed: all reserved ones of a client, or those that
    /// the gateway fills if the route has set others.
    pub is_removed: fn(&str) -> bool,
}

/// The field values of one request, in a single allocation.
struct HeaderValues {
    bytes: Bytes,
    ends: [usize; 7],
}

/// The source of a field value.
#[derive(Clone, Copy)]
enum HeaderSource {
    /// An index into [`HeaderValues`].
    Value(usize),
    /// A constant.
    Constant(&'static str),
}

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static FORWARDED: HeaderName = HeaderName::from_static("forwarded");
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static KIND: HeaderName = HeaderName::from_static("x-postern-kind");
static SUBJECT: HeaderName = HeaderName::from_static("x-postern-subject");
static ISSUER: HeaderName = HeaderName::from_static("x-postern-issuer");
static SERVICE: HeaderName = HeaderName::from_static("x-postern-service");
static SCOPES: HeaderName = HeaderName::from_static("x-postern-scopes");

// === impl IdentityHeaders ===

impl IdentityHeaders<'_> {
    /// Removes the reserved fields from a header map and sets those of the gateway.
    ///
    /// # Errors
    /// An identity that cannot be represented in a header field.
    pub fn write(&self, headers: &mut HeaderMap) -> Result<(), InvalidHeaderValue> {
        let values = HeaderValues::build(self);
        headers::strip(headers, self.is_removed);
        if self.trace.parent.is_none() {
            headers.remove(TRACESTATE);
        }
        if !self.replaced.is_empty() {
            headers::strip(headers, |name| self.replaces(name));
        }
        if self.hides_authorization(headers) {
            headers.remove(AUTHORIZATION);
        }
        headers.reserve(12);
        headers.append(
            &headers::CDN_LOOP,
            HeaderValue::from_static(headers::CDN_ID),
        );
        let requested_host = match self.host {
            Some(host) => headers.insert(HOST, host.clone()),
            None => headers.get(HOST).cloned(),
        };
        let requested_host = self.forwarded_host.cloned().or(requested_host);
        if let Some(host) = requested_host.clone() {
            headers.insert(&FORWARDED_HOST, host);
        }
        for (name, at) in self.fields() {
            let value = match at {
                HeaderSource::Value(at) => values.get(at)?,
                HeaderSource::Constant(text) => HeaderValue::from_static(text),
            };
            headers.insert(name, value);
        }
        for (name, value) in self.added {
            headers.append(name, value.clone());
        }
        if self.forwarded {
            let value = self.forwarded_element(requested_host.as_ref());
            headers.insert(&FORWARDED, HeaderValue::try_from(value)?);
        }
        Ok(())
    }

    /// Appends to a message head: `headers` without removed and hop-by-hop fields, then the fields of
    /// the gateway.
    ///
    /// # Errors
    /// An identity that cannot be represented in a header field.
    pub fn append(
        &self,
        headers: &HeaderMap,
        head: &mut BytesMut,
    ) -> Result<(), InvalidHeaderValue> {
        let values = HeaderValues::build(self);
        // All values are validated at once.
        HeaderValue::from_maybe_shared(values.bytes.clone())?;
        let hides_authorization = self.hides_authorization(headers);
        // The state belongs to the trace of a valid `traceparent` (W3C Trace Context section 4.3).
        let drops_tracestate = self.trace.parent.is_none();
        if let Some(host) = self.host {
            headers::append_field(head, HOST.as_str(), host.as_bytes());
        }
        for (name, value) in headers {
            if hides_authorization && name == AUTHORIZATION
                || drops_tracestate && name == TRACESTATE
                || self.host.is_some() && name == HOST
            {
                continue;
            }
            let name = name.as_str();
            if !headers::is_hop_by_hop(name) && !(self.is_removed)(name) && !self.replaces(name) {
                headers::append_field(head, name, value.as_bytes());
            }
        }
        let requested_host = self.forwarded_host.or(headers.get(HOST));
        if let Some(host) = requested_host {
            headers::append_field(head, FORWARDED_HOST.as_str(), host.as_bytes());
        }
        headers::append_field(head, headers::CDN_LOOP.as_str(), headers::CDN_ID.as_bytes());
        for (name, at) in self.fields() {
            match at {
                HeaderSource::Value(at) => {
                    headers::append_field(head, name.as_str(), &values.bytes[values.range(at)]);
                }
                HeaderSource::Constant(text) => {
                    headers::append_field(head, name.as_str(), text.as_bytes());
                }
            }
        }
        for (name, value) in self.added {
            headers::append_field(head, name.as_str(), value.as_bytes());
        }
        if self.forwarded {
            let value = HeaderValue::try_from(self.forwarded_element(requested_host))?;
            headers::append_field(head, FORWARDED.as_str(), value.as_bytes());
        }
        Ok(())
    }

    /// Returns whether only an external authorization service may set a field of this name.
    fn replaces(&self, name: &str) -> bool {
        let mut replaced = self.replaced.iter();
        replaced.any(|replaced| headers::is_same_folded(name, replaced.as_str()))
    }

    /// Returns whether `Authorization` contains an API key, which no upstream may see.
    fn hides_authorization(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        self.hides_api_keys && values.any(|value| has_api_key(value.as_bytes()))
    }

    /// Returns the value of `Forwarded`. Like `X-Forwarded-For`, it replaces what proxies in front
    /// of the gateway have sent.
    fn forwarded_element(&self, host: Option<&HeaderValue>) -> String {
        let mut value = String::new();
        let host = host.and_then(|host| host.to_str().ok());
        let _memory_only = write_element(&mut value, self.client, host, self.is_tls);
        value
    }

    /// Returns the fields of the gateway, except the forwarded host.
    fn fields(&self) -> impl Iterator<Item = (&'static HeaderName, HeaderSource)> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let (kind, is_service) = match self.caller {
            Some(Caller::Service(_)) => ("service", true),
            Some(Caller::User(_)) | None => ("user", false),
        };
        let always = [
            (&REQUEST_ID, HeaderSource::Value(HeaderValues::ID)),
            (&TRACEPARENT, HeaderSource::Value(HeaderValues::TRACE)),
            (&FORWARDED_FOR, HeaderSource::Value(HeaderValues::CLIENT)),
            (&FORWARDED_PROTO, HeaderSource::Constant(scheme)),
        ];
        let of_caller = [
            (&KIND, HeaderSource::Constant(kind)),
            (&SUBJECT, HeaderSource::Value(HeaderValues::SUBJECT)),
            (&ISSUER, HeaderSource::Value(HeaderValues::ISSUER)),
            (&SCOPES, HeaderSource::Value(HeaderValues::SCOPES)),
        ];
        let of_service = [(&SERVICE, HeaderSource::Value(HeaderValues::SERVICE))];
        let is_known = self.caller.is_some();
        always
            .into_iter()
            .chain(of_caller.into_iter().filter(move |_| is_known))
            .chain(of_service.into_iter().filter(move |_| is_service))
    }
}

/// Appends an IPv4 address with a tenth of the instructions of `write!`; used for every request.
fn append_ipv4(text: &mut BytesMut, address: Ipv4Addr) {
    let mut shown = [0; 15];
    let mut length = 0;
    let mut push = |byte| {
        shown[length] = byte;
        length += 1;
    };
    for (at, octet) in address.octets().into_iter().enumerate() {
        if at > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    text.extend_from_slice(&shown[..length]);
}

// === impl HeaderValues ===

impl HeaderValues {
    const ID: usize = 0;
    const TRACE: usize = 1;
    const CLIENT: usize = 2;
    const SUBJECT: usize = 3;
    const SCOPES: usize = 4;
    const SERVICE: usize = 5;
    const ISSUER: usize = 6;

    fn build(identity: &IdentityHeaders<'_>) -> Self {
        let mut text = BytesMut::with_capacity(320);
        let mut ends = [0; 7];
        text.extend_from_slice(
            identity
                .id
                .hyphenated()
                .encode_lower(&mut Uuid::encode_buffer())
                .as_bytes(),
        );
        ends[Self::ID] = text.len();
        text.extend_from_slice(&identity.trace.to_text());
        ends[Self::TRACE] = text.len();
        match identity.client {
            Some(IpAddr::V4(client)) => append_ipv4(&mut text, client),
            Some(IpAddr::V6(client)) => {
                let _memory_only = write!(text, "{client}");
            }
            None => text.extend_from_slice(b"unknown"),
        }
        ends[Self::CLIENT] = text.len();
        if let Some(caller) = identity.caller {
            text.extend_from_slice(caller.subject().as_bytes());
        }
        ends[Self::SUBJECT] = text.len();
        for (at, scope) in identity
            .caller
            .map(Caller::scopes)
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            text.extend_from_slice(if at > 0 { b" " } else { b"" });
            text.extend_from_slice(scope.as_bytes());
        }
        ends[Self::SCOPES] = text.len();
        if let Some(service) = identity.caller.and_then(Caller::service) {
            text.extend_from_slice(service.service_id.as_bytes());
        }
        ends[Self::SERVICE] = text.len();
        if let Some(caller) = identity.caller {
            text.extend_from_slice(caller.issuer().as_bytes());
        }
        ends[Self::ISSUER] = text.len();
        Self {
            bytes: text.freeze(),
            ends,
        }
    }

    fn get(&self, at: usize) -> Result<HeaderValue, InvalidHeaderValue> {
        HeaderValue::from_maybe_shared(self.bytes.slice(self.range(at)))
    }

    fn range(&self, at: usize) -> Range<usize> {
        at.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_address_is_formatted_as_by_std() {
        for address in [
            [0, 0, 0, 0],
            [127, 0, 0, 1],
            [10, 20, 99, 100],
            [203, 0, 113, 7],
            [255, 255, 255, 255],
        ] {
            let mut text = BytesMut::new();
            append_ipv4(&mut text, Ipv4Addr::from(address));
            assert_eq!(text, Ipv4Addr::from(address).to_string().as_bytes());
        }
    }
}
