//! Responses of upstreams over HTTP/1.1: head and body framing (RFC 9112 sections 4, 6 and 7).
//!
//! Common deviations of origins (folded lines, a space before a colon, trailers) are accepted;
//! ambiguous message framing is not.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use pingora_http::ResponseHeader;

use crate::message::framing::{ChunkState, ExtensionState};
use crate::message::headers::{authenticates_connection, has_member};

/// Parts of a body from this size on are not copied.
const SHARED_PART_BYTES: usize = 4 << 10;

/// Maximum fields of a response head (the limit of Pingora).
const MAX_RESPONSE_FIELDS: usize = 256;

/// Maximum bytes of the trailers of a body, which are skipped.
const MAX_TRAILER_BYTES: usize = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseFault;

/// A response head and the framing of its body.
#[derive(Debug)]
pub struct UpstreamResponse {
    /// The head, changed so that the framing of the body can be forwarded.
    pub head: Box<ResponseHeader>,
    /// The body that follows.
    pub body: ResponseBody,
    /// Whether the connection may be reused after the body.
    pub keep_alive: bool,
    /// Whether the response asks the client to authenticate the connection.
    pub(crate) is_challenge: bool,
}

/// The remaining body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// No body, or its end was reached.
    Done,
    /// This number of bytes.
    Length(u64),
    /// The position in a chunked body.
    Chunked(ChunkState),
    /// After the last chunk: bytes of the current trailer line and of all trailers.
    Trailers(usize, usize),
    /// All bytes until the connection is closed.
    UntilClose,
}

impl UpstreamResponse {
    /// Creates a response on a stream of HTTP/2.
    pub(crate) fn of(head: ResponseHeader, body: ResponseBody) -> Self {
        Self {
            head: Box::new(head),
            body,
            keep_alive: true,
            is_challenge: false,
        }
    }

    /// Takes a complete head from `buffer`; returns `None` if more bytes are needed.
    /// `is_head_request` is true for a response to HEAD.
    pub(crate) fn take(
        buffer: &mut BytesMut,
        is_head_request: bool,
    ) -> Result<Option<Self>, ResponseFault> {
        let mut fields = [const { std::mem::MaybeUninit::uninit() }; MAX_RESPONSE_FIELDS];
        let mut parsed = httparse::Response::new(&mut []);
        let mut parser = httparse::ParserConfig::default();
        parser.allow_spaces_after_header_name_in_responses(true);
        parser.allow_obsolete_multiline_headers_in_responses(true);
        let end = match parser.parse_response_with_uninit_headers(&mut parsed, buffer, &mut fields)
        {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(ResponseFault),
        };
        let (status, minor) = (
            parsed.code.ok_or(ResponseFault)?,
            parsed.version.ok_or(ResponseFault)?,
        );
        let mut parts = http::Response::new(()).into_parts().0;
        parts.status = StatusCode::from_u16(status).map_err(|_| ResponseFault)?;
        // Room for the gateway's own fields, which avoids growing the table.
        parts.headers.reserve(parsed.headers.len() + 6);
        for field in &*parsed.headers {
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| ResponseFault)?;
            let value = HeaderValue::from_bytes(field.value).or_else(|_| unfold(field.value))?;
            parts.headers.append(name, value);
        }
        buffer.advance(end);
        let body = ResponseBody::of(parts.status, minor, &parts.headers, is_head_request)?;
        // Chunked framing overrides `Content-Length`.
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            parts.headers.remove(CONTENT_LENGTH);
        }
        let is_challenge = parts.status == StatusCode::UNAUTHORIZED
            && authenticates_connection(&parts.headers, WWW_AUTHENTICATE);
        let keep_alive = body != ResponseBody::UntilClose && is_keep_alive(minor, &parts.headers);
        if body == ResponseBody::UntilClose {
            parts
                .headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        parts.version = Version::HTTP_11;
        Ok(Some(Self {
            head: Box::new(ResponseHeader::from(parts)),
            body,
            keep_alive,
            is_challenge,
        }))
    }
}

/// Returns whether the connection persists after the message (RFC 9112 section 9.3).
fn is_keep_alive(minor: u8, headers: &HeaderMap) -> bool {
    let has_option = |wanted| has_member(headers, CONNECTION, wanted);
    !has_option("close") && (minor == 1 || has_option("keep-alive"))
}

impl ResponseBody {
    /// Returns the framing of the body after a head (RFC 9112 section 6.3). `minor` is the minor
    /// version of HTTP/1.
    ///
    /// # Errors
    /// Framing that another recipient may interpret differently, even if there is no body.
    pub(crate) fn of(
        status: StatusCode,
        minor: u8,
        headers: &HeaderMap,
        is_head_request: bool,
    ) -> Result<Self, ResponseFault> {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let coding = codings.next();
        let is_chunked = coding.is_some_and(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if coding.is_some() && !(is_chunked && codings.next().is_none() && minor == 1) {
            return Err(ResponseFault);
        }
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let (length, more) = (lengths.next(), lengths.next());
        let is_empty =
            is_head_request || status.is_informational() || matches!(status.as_u16(), 204 | 304);
        Ok(match length {
            _ if is_chunked && is_empty => Self::Done,
            _ if is_chunked => Self::Chunked(ChunkState::Size(0, 0)),
            _ if more.is_some() => return Err(ResponseFault),
            None if is_empty => Self::Done,
            None => Self::UntilClose,
            Some(value) => match length_of(value)? {
                0 => Self::Done,
                _ if is_empty => Self::Done,
                length => Self::Length(length),
            },
        })
    }

    /// Takes the next bytes of the body from `buffer`; `None` if there are none.
    pub(crate) fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, ResponseFault> {
        loop {
            let limit = match self {
                Self::Done => return Ok(None),
                Self::Length(left) | Self::Chunked(ChunkState::Data(left)) => *left,
                Self::UntilClose => u64::MAX,
                Self::Chunked(_) | Self::Trailers(..) => {
                    if !self.step(buffer)? {
                        return Ok(None);
                    }
                    continue;
                }
            };
            if buffer.is_empty() {
                return Ok(None);
            }
            let taken = usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            // A small part would keep the whole buffer of its read.
            let data = match taken < SHARED_PART_BYTES {
                true => buffer.copy_to_bytes(taken),
                false => buffer.split_to(taken).freeze(),
            };
            self.advance(taken as u64);
            // The end of the body is detected together with its last bytes.
            while matches!(self, Self::Chunked(chunk) if !matches!(chunk, ChunkState::Data(_)))
                || matches!(self, Self::Trailers(..))
            {
                if !self.step(buffer)? {
                    break;
                }
            }
            return Ok(Some(data));
        }
    }

    fn advance(&mut self, taken: u64) {
        *self = match *self {
            Self::Length(left) if left == taken => Self::Done,
            Self::Length(left) => Self::Length(left - taken),
            Self::Chunked(ChunkState::Data(left)) if left == taken => {
                Self::Chunked(ChunkState::DataCr)
            }
            Self::Chunked(ChunkState::Data(left)) => Self::Chunked(ChunkState::Data(left - taken)),
            Self::Chunked(_) | Self::Trailers(..) | Self::UntilClose | Self::Done => return,
        };
    }

    /// Processes one byte of framing. Returns whether there was one.
    fn step(&mut self, buffer: &mut BytesMut) -> Result<bool, ResponseFault> {
        let Some(&byte) = buffer.first() else {
            return Ok(false);
        };
        *self = self.next(byte)?;
        buffer.advance(1);
        Ok(true)
    }

    /// Returns the state after one byte of framing.
    fn next(self, byte: u8) -> Result<Self, ResponseFault> {
        Ok(match (self, byte) {
            (Self::Chunked(ChunkState::LastCr), byte) if byte != b'\r' => Self::Trailers(1, 1),
            // Some origins pad the size with spaces, or send a malformed extension.
            (Self::Chunked(ChunkState::Size(size, 1..)), b' ' | b'\t' | b';') => {
                Self::Chunked(ChunkState::Extension(size, 0, ExtensionState::Any))
            }
            (Self::Chunked(chunk), byte) => chunk
                .step(byte)
                .map_err(|_| ResponseFault)?
                .map_or(Self::Done, Self::Chunked),
            (Self::Trailers(0, _), b'\n') => Self::Done,
            (Self::Trailers(_, all), b'\n') => Self::Trailers(0, all),
            (Self::Trailers(_, MAX_TRAILER_BYTES..), _) => return Err(ResponseFault),
            (Self::Trailers(line, all), b'\r') => Self::Trailers(line, all + 1),
            (Self::Trailers(line, all), _) => Self::Trailers(line + 1, all + 1),
            (Self::Done | Self::Length(_) | Self::UntilClose, _) => self,
        })
    }
}

/// Joins a folded value into one line (RFC 9112 section 5.2).
fn unfold(value: &[u8]) -> Result<HeaderValue, ResponseFault> {
    let lines: Vec<&[u8]> = value
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .collect();
    let flat = lines.join(&b' ');
    HeaderValue::from_bytes(&flat).map_err(|_| ResponseFault)
}

fn length_of(value: &HeaderValue) -> Result<u64, ResponseFault> {
    let text = value
        .to_str()
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(ResponseFault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        wire: &str,
        is_head_request: bool,
    ) -> Result<(u16, String, bool, usize), ResponseFault> {
        let mut buffer = BytesMut::from(wire);
        let response =
            UpstreamResponse::take(&mut buffer, is_head_request)?.expect("a complete head");
        let (mut body, mut text) = (response.body, Vec::new());
        while let Some(data) = body.take(&mut buffer)? {
            text.extend_from_slice(&data);
        }
        let is_whole = matches!(body, ResponseBody::Done);
        let text = String::from_utf8(text).expect("text");
        Ok((
            response.head.status.as_u16(),
            text,
            response.keep_alive && is_whole,
            buffer.len(),
        ))
    }

    #[test]
    fn response_ends_at_its_framing() {
        let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2 ;x\r\nde\r\n0\r\n\r\nH";
        let both = "Transfer-Encoding: Chunked\r\nContent-Length: 1\r\n\r\n1\r\na\r\n0\r\nX: y\r\nZ: 1\r\n\r\nH";
        let persistent = "Connection: keep-alive\r\nContent-Length: 1\r\n\r\na";
        let closing = "Content-Length: 0\r\nConnection: x, Close\r\n\r\n";
        let cut = "Transfer-Encoding: chunked\r\n\r\n3\r\nab";
        // The body, whether the connection is kept, and the bytes that remain.
        for (version, fields, body, keep_alive, rest) in [
            ("1.1", "Content-Length: 3\r\n\r\nabcHTTP", "abc", true, 4),
            ("1.1", "Content-Length: 4\r\n\r\nabc", "abc", false, 0),
            ("1.1", closing, "", false, 0),
            ("1.1", "\r\nabc", "abc", false, 0),
            ("1.0", "Content-Length: 1\r\n\r\na", "a", false, 0),
            ("1.0", persistent, "a", true, 0),
            ("1.1", chunked, "abcde", true, 1),
            ("1.1", both, "a", true, 1),
            ("1.1", cut, "ab", false, 0),
        ] {
            let found = read(&format!("HTTP/{version} 200 OK\r\n{fields}"), false);
            let expected = Ok((200, body.to_owned(), keep_alive, rest));
            assert_eq!(found, expected, "{version} {fields:?}");
        }
        let to_head = read("HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n", true);
        assert_eq!(to_head, Ok((200, String::new(), true, 0)));
        let empty = "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n";
        let empty = read(empty, false);
        assert_eq!(empty, Ok((304, String::new(), true, 0)));
    }

    #[test]
    fn ambiguous_framing_is_rejected() {
        for wire in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            assert_eq!(read(wire, false), Err(ResponseFault), "{wire:?}");
        }
        let endless = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: {}\r\n\r\n",
            "y\r".repeat(MAX_TRAILER_BYTES / 2)
        );
        assert_eq!(read(&endless, false), Err(ResponseFault));
        let folded = "HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\nContent-Length: 1\r\n\r\na";
        assert_eq!(read(folded, false), Ok((200, "a".to_owned(), true, 0)));
    }

    #[test]
    fn body_is_parsed_in_any_fragmentation() {
        let whole = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: 1\r\n\r\n";
        for chunk_len in 1..whole.len() {
            let mut body = ResponseBody::Chunked(ChunkState::Size(0, 0));
            let (mut text, mut buffer) = (Vec::new(), BytesMut::new());
            for part in whole.chunks(chunk_len) {
                buffer.extend_from_slice(part);
                while let Some(data) = body.take(&mut buffer).expect("well formed") {
                    text.extend_from_slice(&data);
                }
            }
            let left = (body, buffer.len());
            assert_eq!(left, (ResponseBody::Done, 0), "{chunk_len}");
            assert_eq!(text, b"hello!", "{chunk_len}");
        }
    }
}
