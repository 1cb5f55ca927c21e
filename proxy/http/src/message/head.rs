//! The strict check of an HTTP/1 request head (RFC 9112).
//!
//! Ambiguous heads are rejected before any part is forwarded. The check also determines the framing
//! of the body, so that later stages do not interpret it differently.

mod canonical;
pub mod http2;

use std::net::Ipv6Addr;
use std::ops::Range;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use memchr::{memchr, memchr2};
use pingora_http::RequestHeader;
use postern_core::Code;

use crate::message::head::canonical::CheckedTarget;
use crate::message::headers;
use crate::message::host::is_host_name;
use crate::message::target::{RequestTarget, TargetFault};

/// Limits of a request head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes, including the request line and the empty line.
    pub bytes: usize,
    /// Number of header fields.
    pub fields: usize,
    /// Bytes of the request target.
    pub target: usize,
    /// Whether a path may be ambiguous, because a route accepts that.
    pub ambiguous_paths: bool,
}

/// The reason for rejecting a head. The connection is closed after each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// An HTTP version other than 1.0 and 1.1.
    Version,
    /// A `:scheme` of an HTTP/2 request other than http and https. In HTTP/1, a foreign scheme is a
    /// [`HeadFault::RequestLine`].
    Scheme,
    /// A line that does not end in CRLF, a bare CR, or a NUL.
    LineEnding,
    /// A request line that is not exactly `method SP target SP HTTP/1.x`, the method CONNECT, or a
    /// target that is neither a path nor an absolute http or https URL. In HTTP/2: an invalid method
    /// or CONNECT.
    RequestLine,
    /// A field line that violates RFC 9112 section 5: an invalid name, white space before the
    /// colon, line folding, or a control character.
    Field,
    /// A missing, repeated or malformed `Host`.
    Host,
    /// An absolute target whose authority differs from `Host`.
    Authority,
    /// A `Content-Length` that is not a single number, a `Transfer-Encoding` other than `chunked`,
    /// or both.
    Framing,
    /// A `Connection` option that is no token or names a field that the gateway needs, or more than
    /// `MAX_OPTIONS`.
    Connection,
    /// More bytes or fields than the limits allow.
    TooLarge,
    /// A target longer than the limit.
    TargetTooLong,
    /// A target that is not canonical. It is rejected here, because Pingora would remove a fragment
    /// and escape illegal characters.
    Target(TargetFault),
}

/// The framing of a message body as its head declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// A body of this number of bytes; 0 if there is no body.
    Length(u64),
    /// A chunked body.
    Chunked,
}

/// A head that passed the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Length of the head in bytes, including the empty line.
    pub len: usize,
    /// The framing of the body.
    pub body: BodyKind,
    target: CheckedTarget,
    has_host: bool,
    /// Whether `Connection` names fields, which are not forwarded.
    names_fields: bool,
}

/// A resumable search for the end of a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScanner {
    scanned: usize,
    line_start: usize,
}

#[derive(Default)]
struct CheckedFields<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    count: usize,
    /// Number of options in `Connection`.
    options: usize,
    names_fields: bool,
}

impl HeadFault {
    /// Returns the problem code for the response, the access event and the metric.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::LineEnding | Self::Field | Self::Host | Self::Framing | Self::Connection => {
                Code::InvalidHeader
            }
            Self::RequestLine | Self::Authority | Self::Scheme | Self::Target(_) => {
                Code::InvalidTarget
            }
            Self::Version => Code::HttpVersionNotSupported,
            Self::TooLarge => Code::HeadTooLarge,
            Self::TargetTooLong => Code::TargetTooLong,
        }
    }

    /// Returns whether the head is malformed, and not only larger than the limits. A proxy adds
    /// fields to the heads of its clients.
    pub fn is_malformed(self) -> bool {
        !matches!(self, Self::TooLarge | Self::TargetTooLong)
    }

    /// Returns a sentence that describes the fault.
    #[must_use]
    pub fn detail(self) -> &'static str {
        match self {
            Self::LineEnding => {
                "Every line of the head must end in CRLF; a bare LF, CR or NUL is not accepted."
            }
            Self::RequestLine => {
                "The request line must be a method other than CONNECT, a path or an absolute http or \
                 https URL, and HTTP/1.0 or HTTP/1.1."
            }
            Self::Version => "The supported versions of HTTP/1 are 1.0 and 1.1.",
            Self::Scheme => "The scheme of the target must be http or https.",
            Self::Field => {
                "A header field has a malformed name or value, or is folded over two lines."
            }
            Self::Host => "Exactly one Host field with a host and an optional port is required.",
            Self::Authority => "The authority of an absolute target must be the same as Host.",
            Self::Framing => {
                "Send one Content-Length, or Transfer-Encoding: chunked, and never both."
            }
            Self::Connection => {
                "Connection must name few fields, and none that identifies the client or frames the \
                 message."
            }
            Self::TooLarge => "The head has too many bytes or too many fields.",
            Self::TargetTooLong => "The request target is too long.",
            Self::Target(fault) => fault.detail(),
        }
    }
}

impl HeadLimits {
    fn check_target(&self, target: &[u8]) -> Result<(), HeadFault> {
        let parsed = RequestTarget::parse_ambiguous(target).map_err(HeadFault::Target)?;
        match parsed.ambiguity.filter(|_| !self.ambiguous_paths) {
            Some(fault) => Err(HeadFault::Target(fault)),
            None => Ok(()),
        }
    }
}

impl HeadScanner {
    /// Returns the length of the head in `bytes`, including the empty line, or `None` if more bytes
    /// are needed. The caller appends to `bytes` between calls.
    ///
    /// # Errors
    /// As soon as it is detected: a line that does not end in CRLF, an empty first line, or a head
    /// over the limit.
    pub fn find_end(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadFault> {
        while let Some(at) = memchr(b'\n', &bytes[self.scanned..]) {
            let newline = self.scanned + at;
            let line = self.line_start;
            if newline == line || bytes[newline - 1] != b'\r' {
                return Err(HeadFault::LineEnding);
            }
            self.scanned = newline + 1;
            self.line_start = newline + 1;
            if self.line_start > limits.bytes {
                return Err(HeadFault::TooLarge);
            }
            if newline == line + 1 {
                return if line == 0 {
                    Err(HeadFault::RequestLine)
                } else {
                    Ok(Some(newline + 1))
                };
            }
        }
        self.scanned = bytes.len();
        if bytes.len() > limits.bytes {
            Err(HeadFault::TooLarge)
        } else {
            Ok(None)
        }
    }
}

impl RequestHead {
    /// Checks a complete head; `bytes` must end with the empty line.
    ///
    /// # Errors
    /// The first fault in the order of the checks.
    pub fn check(bytes: &[u8], limits: &HeadLimits) -> Result<Self, HeadFault> {
        let mut lines = HeadLines(&bytes[..bytes.len().saturating_sub(2)]);
        let request_line = strip_crlf(lines.next().unwrap_or_default())?;
        let target = find_target(request_line, limits);
        let target = target.map_err(|fault| line_fault(request_line, fault))?;
        let mut fields = CheckedFields::default();
        for line in lines {
            fields.count += 1;
            if fields.count > limits.fields {
                return Err(HeadFault::TooLarge);
            }
            let line = strip_crlf(line)?;
            let checked = fields.check(line);
            checked.map_err(|fault| line_fault(line, fault))?;
        }
        let is_http10 = request_line.ends_with(b"HTTP/1.0");
        if fields.host.is_none() && !is_http10 {
            return Err(HeadFault::Host);
        }
        let target = CheckedTarget::check(limits, request_line, target, fields.host)?;
        let body = fields.body()?;
        // HTTP/1.0 has no chunked framing (RFC 9112 section 6.1).
        if body == BodyKind::Chunked && is_http10 {
            return Err(HeadFault::Framing);
        }
        Ok(Self {
            len: bytes.len(),
            body,
            target,
            has_host: fields.host.is_some(),
            names_fields: fields.names_fields,
        })
    }
}

/// Converts a checked head to Pingora's representation without repeating the check. Returns `None`
/// for an empty or malformed head, which the check rejects.
#[must_use]
pub fn to_request(bytes: &[u8]) -> Option<RequestHeader> {
    let mut lines = HeadLines(&bytes[..bytes.len().saturating_sub(2)]);
    let mut words = lines
        .next()?
        .strip_suffix(b"\r\n")?
        .split(|byte| *byte == b' ');
    let mut parts = Request::new(()).into_parts().0;
    parts.method = Method::from_bytes(words.next()?).ok()?;
    let target = PathAndQuery::try_from(words.next()?).ok()?;
    parts.uri = Uri::from(target);
    parts.version = if words.next()? == b"HTTP/1.1" {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    parts.headers.reserve(12);
    for line in lines {
        let line = line.strip_suffix(b"\r\n")?;
        let (name, value) = split_field(line)?;
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value.trim_ascii()).ok()?;
        parts.headers.append(name, value);
    }
    Some(RequestHeader::from(parts))
}

/// Returns whether the request is `OPTIONS *`, which concerns the server as a whole (RFC 9110
/// section 9.3.7).
#[must_use]
pub fn is_server_options(method: &[u8], target: &[u8]) -> bool {
    method == b"OPTIONS" && target == b"*"
}

fn strip_crlf(line: &[u8]) -> Result<&[u8], HeadFault> {
    line.strip_suffix(b"\r\n").ok_or(HeadFault::LineEnding)
}

/// Returns the fault of a line that was rejected. One with another CR or a NUL is always rejected.
#[cold]
fn line_fault(line: &[u8], fault: HeadFault) -> HeadFault {
    match memchr2(b'\r', 0, line) {
        Some(_) => HeadFault::LineEnding,
        None => fault,
    }
}

/// Splits a field line at its colon. Names are too short for a vectorized search.
fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], &line[colon + 1..]))
}

/// An iterator over lines, including their line endings.
struct HeadLines<'a>(&'a [u8]);

impl<'a> Iterator for HeadLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = memchr(b'\n', self.0).map_or(self.0.len(), |newline| newline + 1);
        let (line, rest) = self.0.split_at(end);
        self.0 = rest;
        (!line.is_empty()).then_some(line)
    }
}

fn find_target(line: &[u8], limits: &HeadLimits) -> Result<Range<usize>, HeadFault> {
    let first = line
        .iter()
        .position(|byte| *byte == b' ')
        .ok_or(HeadFault::RequestLine)?;
    let last = line
        .iter()
        .rposition(|byte| *byte == b' ')
        .ok_or(HeadFault::RequestLine)?;
    let (method, version) = (&line[..first], &line[last + 1..]);
    if method.len() > 32 || !headers::is_token(method) {
        return Err(HeadFault::RequestLine);
    }
    if method == b"CONNECT" || first >= last {
        return Err(HeadFault::RequestLine);
    }
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" => {}
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(HeadFault::Version);
        }
        _ => return Err(HeadFault::RequestLine),
    }
    let target = first + 1..last;
    if target.len() > limits.target {
        return Err(HeadFault::TargetTooLong);
    }
    let visible = line[target.clone()].iter().all(u8::is_ascii_graphic);
    if visible {
        Ok(target)
    } else {
        Err(HeadFault::RequestLine)
    }
}

impl<'a> CheckedFields<'a> {
    fn check(&mut self, line: &'a [u8]) -> Result<(), HeadFault> {
        let (name, value) = split_field(line).ok_or(HeadFault::Field)?;
        if !headers::is_token(name) || headers::contains_control_character(value) {
            return Err(HeadFault::Field);
        }
        // Trimmed after the check, because `trim_ascii` removes form feeds as well.
        let value = value.trim_ascii();
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.set_host(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.set_content_length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                self.set_transfer_encoding(value)
            }
            10 if name.eq_ignore_ascii_case(b"connection") => self.add_options(value),
            _ => Ok(()),
        }
    }

    fn set_host(&mut self, value: &'a [u8]) -> Result<(), HeadFault> {
        if self.host.replace(value).is_some() || !is_authority(value) {
            return Err(HeadFault::Host);
        }
        Ok(())
    }

    fn add_options(&mut self, value: &[u8]) -> Result<(), HeadFault> {
        for option in headers::options(value) {
            self.options += 1;
            if self.options > headers::MAX_OPTIONS {
                return Err(HeadFault::Connection);
            }
            if !headers::is_known_option(option) {
                if !headers::may_be_named(option) {
                    return Err(HeadFault::Connection);
                }
                self.names_fields = true;
            }
        }
        Ok(())
    }

    fn set_content_length(&mut self, value: &[u8]) -> Result<(), HeadFault> {
        let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
        if !digits || self.length.is_some() {
            return Err(HeadFault::Framing);
        }
        self.length = Some(
            value
                .iter()
                .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')),
        );
        Ok(())
    }

    fn set_transfer_encoding(&mut self, value: &[u8]) -> Result<(), HeadFault> {
        if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadFault::Framing);
        }
        self.chunked = true;
        Ok(())
    }

    fn body(&self) -> Result<BodyKind, HeadFault> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(HeadFault::Framing),
            (true, None) => Ok(BodyKind::Chunked),
            (false, length) => Ok(BodyKind::Length(length.unwrap_or(0))),
        }
    }
}

/// Returns whether the value is a host with an optional port, without user information.
#[must_use]
pub fn is_authority(value: &[u8]) -> bool {
    let is_port = |port: &[u8]| {
        let number = port.iter().try_fold(0_u16, |sum, byte| match byte {
            b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u16::from(byte - b'0')),
            _ => None,
        });
        port.len() <= 5 && number.is_some()
    };
    if let Some(rest) = value.strip_prefix(b"[") {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else {
            return false;
        };
        let address =
            std::str::from_utf8(&rest[..end]).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok());
        let port = rest[end + 1..]
            .strip_prefix(b":")
            .map_or(rest.len() == end + 1, is_port);
        return address && port;
    }
    let mut parts = value.splitn(2, |byte| *byte == b':');
    let host = parts.next().unwrap_or_default();
    is_host_name(host) && parts.next().is_none_or(is_port)
}

#[cfg(test)]
mod tests;
