//! What an upstream is told of a request: by the gateway alone.
//!
//! What only the gateway may say is taken out in every spelling, and said. The fields are written
//! into the bare map, because Pingora's own insertion costs two allocations a field.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{HOST, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};
use postern_common::token::Caller;
use uuid::Uuid;

use crate::message::headers;
use crate::telemetry::trace_context::Trace;

/// What is said of one request.
#[derive(Clone, Copy, Debug)]
pub struct Injection<'a> {
    /// The request's id.
    pub id: Uuid,
    /// The trace that goes on behind the gateway.
    pub trace: Trace,
    /// The client's address, as far as proxies in front can be believed.
    pub client: Option<IpAddr>,
    /// Whether the client speaks TLS.
    pub is_tls: bool,
    /// Who is calling; `None` on a public route.
    pub caller: Option<&'a Caller>,
}

/// The values of one request, in one allocation.
struct Values {
    bytes: Bytes,
    ends: [usize; 7],
}

/// Where the value of a field is found.
#[derive(Clone, Copy)]
enum Said {
    /// Among the values of this request.
    Now(usize),
    /// The same for all.
    Always(&'static str),
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

// === impl Injection ===

impl Injection<'_> {
    /// Takes out what a client may not say, and says it.
    ///
    /// # Errors
    /// An identity that no header can hold.
    pub fn write(&self, headers: &mut HeaderMap) -> Result<(), InvalidHeaderValue> {
        let values = Values::build(self);
        strip(headers);
        headers.reserve(11);
        if let Some(host) = headers.get(HOST).cloned() {
            headers.insert(&FORWARDED_HOST, host);
        }
        for (name, at) in self.fields() {
            let value = match at {
                Said::Now(at) => values.get(at)?,
                Said::Always(text) => HeaderValue::from_static(text),
            };
            headers.insert(name, value);
        }
        Ok(())
    }

    /// The same for a head that is being written: `headers` without what a client may not say and
    /// without what is said of a connection alone, then what the gateway says.
    ///
    /// # Errors
    /// An identity that no header can hold.
    pub fn append(
        &self,
        headers: &HeaderMap,
        head: &mut BytesMut,
    ) -> Result<(), InvalidHeaderValue> {
        let values = Values::build(self);
        // Checked as a whole, once.
        HeaderValue::from_maybe_shared(values.bytes.clone())?;
        for (name, value) in headers {
            let name = name.as_str();
            if !headers::is_of_connection(name) && !headers::is_reserved(name) {
                headers::append(head, name, value.as_bytes());
            }
        }
        if let Some(host) = headers.get(HOST) {
            headers::append(head, FORWARDED_HOST.as_str(), host.as_bytes());
        }
        for (name, at) in self.fields() {
            match at {
                Said::Now(at) => {
                    headers::append(head, name.as_str(), &values.bytes[values.range(at)])
                }
                Said::Always(text) => headers::append(head, name.as_str(), text.as_bytes()),
            }
        }
        Ok(())
    }

    /// Everything that is said but the host.
    fn fields(&self) -> impl Iterator<Item = (&'static HeaderName, Said)> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let (kind, is_service) = match self.caller {
            Some(Caller::Service(_)) => ("service", true),
            Some(Caller::User(_)) | None => ("user", false),
        };
        let always = [
            (&REQUEST_ID, Said::Now(Values::ID)),
            (&TRACEPARENT, Said::Now(Values::TRACE)),
            (&FORWARDED_FOR, Said::Now(Values::CLIENT)),
            (&FORWARDED_PROTO, Said::Always(scheme)),
        ];
        let of_caller = [
            (&KIND, Said::Always(kind)),
            (&SUBJECT, Said::Now(Values::SUBJECT)),
            (&ISSUER, Said::Now(Values::ISSUER)),
            (&SCOPES, Said::Now(Values::SCOPES)),
        ];
        let of_service = [(&SERVICE, Said::Now(Values::SERVICE))];
        let is_known = self.caller.is_some();
        always
            .into_iter()
            .chain(of_caller.into_iter().filter(move |_| is_known))
            .chain(of_service.into_iter().filter(move |_| is_service))
    }
}

fn strip(headers: &mut HeaderMap) {
    let reserved: Vec<HeaderName> = headers
        .keys()
        .filter(|name| headers::is_reserved(name.as_str()))
        .cloned()
        .collect();
    for name in reserved {
        headers.remove(name);
    }
}

/// What `write!` does with a tenth of the instructions: every request has one.
fn dotted(text: &mut BytesMut, address: Ipv4Addr) {
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

// === impl Values ===

impl Values {
    const ID: usize = 0;
    const TRACE: usize = 1;
    const CLIENT: usize = 2;
    const SUBJECT: usize = 3;
    const SCOPES: usize = 4;
    const SERVICE: usize = 5;
    const ISSUER: usize = 6;

    fn build(said: &Injection<'_>) -> Self {
        let mut text = BytesMut::with_capacity(320);
        let mut ends = [0; 7];
        text.extend_from_slice(
            said.id
                .hyphenated()
                .encode_lower(&mut Uuid::encode_buffer())
                .as_bytes(),
        );
        ends[Self::ID] = text.len();
        text.extend_from_slice(&said.trace.to_text());
        ends[Self::TRACE] = text.len();
        match said.client {
            Some(IpAddr::V4(client)) => dotted(&mut text, client),
            Some(IpAddr::V6(client)) => {
                let _memory_only = write!(text, "{client}");
            }
            None => text.extend_from_slice(b"unknown"),
        }
        ends[Self::CLIENT] = text.len();
        if let Some(caller) = said.caller {
            text.extend_from_slice(caller.subject().as_bytes());
        }
        ends[Self::SUBJECT] = text.len();
        for (at, scope) in said
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
        if let Some(service) = said.caller.and_then(Caller::service) {
            text.extend_from_slice(service.service_id.as_bytes());
        }
        ends[Self::SERVICE] = text.len();
        if let Some(caller) = said.caller {
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
    fn addresses_are_written_as_they_are_everywhere() {
        for address in [
            [0, 0, 0, 0],
            [127, 0, 0, 1],
            [10, 20, 99, 100],
            [203, 0, 113, 7],
            [255, 255, 255, 255],
        ] {
            let mut text = BytesMut::new();
            dotted(&mut text, Ipv4Addr::from(address));
            assert_eq!(text, Ipv4Addr::from(address).to_string().as_bytes());
        }
    }
}
