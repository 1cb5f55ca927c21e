//! The header fields in which the gateway tells an upstream who is calling.
//!
//! Reserved fields of the client are removed in every spelling before these are set.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, HOST, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};
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

#[derive(Clone, Copy)]
enum FieldValue<'v> {
    /// That of the client, or of the configuration.
    Given(&'v HeaderValue),
    /// An index into [`HeaderValues`].
    Own(&'v HeaderValues, usize),
    Constant(&'static str),
}

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static KIND: HeaderName = HeaderName::from_static("x-postern-kind");
static SUBJECT: HeaderName = HeaderName::from_static("x-postern-subject");
static ISSUER: HeaderName = HeaderName::from_static("x-postern-issuer");
static SERVICE: HeaderName = HeaderName::from_static("x-postern-service");
static SCOPES: HeaderName = HeaderName::from_static("x-postern-scopes");

impl IdentityHeaders<'_> {
    /// Returns the fields of a request to an upstream over HTTP/2: those of `headers` without removed
    /// and hop-by-hop ones, then those of the gateway.
    ///
    /// # Errors
    /// An identity that cannot be represented in a header field.
    pub fn header_map(&self, headers: &HeaderMap) -> Result<HeaderMap, InvalidHeaderValue> {
        let (mut all, mut failure) = (HeaderMap::with_capacity(headers.len() + 12), None);
        let values = HeaderValues::build(self);
        self.visit(headers, &values, |name, value| match value.to_value() {
            Ok(value) => drop(all.append(name, value)),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(all), Err)
    }

    /// Appends the same fields to a message head.
    ///
    /// # Errors
    /// An identity that cannot be represented in a header field.
    pub fn append(
        &self,
        headers: &HeaderMap,
        head: &mut BytesMut,
    ) -> Result<(), InvalidHeaderValue> {
        let values = HeaderValues::build(self);
        // All values are checked at once.
        if headers::contains_control_character(&values.bytes) {
            HeaderValue::from_bytes(&values.bytes)?;
        }
        self.visit(headers, &values, |name, value| {
            headers::append_field(head, name.as_str(), value.as_bytes());
        });
        Ok(())
    }

    fn visit(
        &self,
        headers: &HeaderMap,
        values: &HeaderValues,
        mut emit: impl FnMut(&HeaderName, FieldValue<'_>),
    ) {
        let hides_authorization = self.hides_authorization(headers);
        // The state belongs to the trace of a valid `traceparent` (W3C Trace Context section 4.3).
        let drops_tracestate = self.trace.parent.is_none();
        if let Some(host) = self.host {
            emit(&HOST, FieldValue::Given(host));
        }
        for (name, value) in headers {
            if hides_authorization && name == AUTHORIZATION
                || drops_tracestate && name == TRACESTATE
                || self.host.is_some() && name == HOST
            {
                continue;
            }
            let text = name.as_str();
            if !headers::is_hop_by_hop(text) && !(self.is_removed)(text) && !self.replaces(text) {
                emit(name, FieldValue::Given(value));
            }
        }
        if let Some(host) = self.forwarded_host.or(headers.get(HOST)) {
            emit(&FORWARDED_HOST, FieldValue::Given(host));
        }
        emit(&headers::CDN_LOOP, FieldValue::Constant(headers::CDN_ID));
        for (name, value) in self.fields(values) {
            emit(name, value);
        }
        for (name, value) in self.added {
            emit(name, FieldValue::Given(value));
        }
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

    /// Returns the fields of the gateway, except the forwarded host.
    fn fields<'v>(
        &self,
        values: &'v HeaderValues,
    ) -> impl Iterator<Item = (&'static HeaderName, FieldValue<'v>)> + use<'v> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let (kind, is_service) = match self.caller {
            Some(Caller::Service(_)) => ("service", true),
            Some(Caller::User(_)) | None => ("user", false),
        };
        let own = |at| FieldValue::Own(values, at);
        let always = [
            (&REQUEST_ID, own(HeaderValues::ID)),
            (&TRACEPARENT, own(HeaderValues::TRACE)),
            (&FORWARDED_FOR, own(HeaderValues::CLIENT)),
            (&FORWARDED_PROTO, FieldValue::Constant(scheme)),
        ];
        let of_caller = [
            (&KIND, FieldValue::Constant(kind)),
            (&SUBJECT, own(HeaderValues::SUBJECT)),
            (&ISSUER, own(HeaderValues::ISSUER)),
            (&SCOPES, own(HeaderValues::SCOPES)),
        ];
        let of_service = [(&SERVICE, own(HeaderValues::SERVICE))];
        let is_known = self.caller.is_some();
        always
            .into_iter()
            .chain(of_caller.into_iter().filter(move |_| is_known))
            .chain(of_service.into_iter().filter(move |_| is_service))
    }
}

impl FieldValue<'_> {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Given(value) => value.as_bytes(),
            Self::Own(values, at) => &values.bytes[values.range(*at)],
            Self::Constant(text) => text.as_bytes(),
        }
    }

    fn to_value(self) -> Result<HeaderValue, InvalidHeaderValue> {
        match self {
            Self::Given(value) => Ok(value.clone()),
            Self::Own(values, at) => {
                HeaderValue::from_maybe_shared(values.bytes.slice(values.range(at)))
            }
            Self::Constant(text) => Ok(HeaderValue::from_static(text)),
        }
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
