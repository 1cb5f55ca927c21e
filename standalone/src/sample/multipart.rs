//! A streaming parser of `multipart/form-data` (RFC 7578, RFC 2046): bytes in, events out. No part
//! is buffered whole.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::web::header_parameters::{essence, parameter};

/// Maximum size in bytes of the head of a part, and of the preamble.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Maximum number of parts in a body; a form has two.
const MAX_PARTS: usize = 32;

/// A parsing event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FormEvent {
    /// The start of a part.
    Begin(PartHead),
    /// Content of the part.
    Data(Bytes),
    /// The end of the part.
    End,
}

/// The headers of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PartHead {
    /// Name of the field.
    pub(super) name: String,
    /// Name of the file, if the field is a file.
    pub(super) file_name: Option<String>,
    /// Content type given by the client.
    pub(super) content_type: Option<String>,
}

/// A syntax error, with a message for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MultipartError(pub(super) &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter: before `--` or the end of the line.
    Delimited,
    /// In the head of a part.
    PartHead,
    /// In the content of a part.
    Body,
    /// After the last delimiter; further bytes are ignored.
    Done,
}

/// A streaming parser.
#[derive(Debug)]
pub(super) struct MultipartParser {
    /// CRLF, two hyphens, and the boundary.
    delimiter: Vec<u8>,
    state: ParserState,
    buffer: BytesMut,
    parts: usize,
}

// === impl MultipartParser ===

impl MultipartParser {
    /// Creates a parser for the boundary in the `Content-Type` header. Returns `None` if the type
    /// is not form data with a valid boundary.
    pub(super) fn for_headers(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        if !essence(value).eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(value, "boundary")?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
        let valid = (1..=70).contains(&boundary.len())
            && boundary.bytes().all(allowed)
            && !boundary.ends_with(' ');
        valid.then(|| Self::new(&boundary))
    }

    fn new(boundary: &str) -> Self {
        // The first delimiter has no preceding CRLF, so one is inserted.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Self {
            delimiter,
            state: ParserState::Preamble,
            buffer,
            parts: 0,
        }
    }

    /// Appends bytes of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.state != ParserState::Done {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next event, or `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<FormEvent>, MultipartError> {
        loop {
            match self.state {
                ParserState::Preamble => {
                    if !self.skip_preamble()? {
                        return Ok(None);
                    }
                }
                ParserState::Delimited => {
                    if !self.read_delimiter_end()? {
                        return Ok(None);
                    }
                }
                ParserState::PartHead => return self.read_head(),
                ParserState::Body => return Ok(self.read_body()),
                ParserState::Done => return Ok(None),
            }
        }
    }

    /// Returns whether the last delimiter was parsed. Otherwise the body is incomplete.
    pub(super) fn is_done(&self) -> bool {
        self.state == ParserState::Done
    }

    fn skip_preamble(&mut self) -> Result<bool, MultipartError> {
        let Some(at) = find(&self.buffer, &self.delimiter) else {
            return if self.buffer.len() > MAX_HEAD_BYTES {
                Err(MultipartError("no part begins"))
            } else {
                Ok(false)
            };
        };
        self.buffer.advance(at + self.delimiter.len());
        self.state = ParserState::Delimited;
        Ok(true)
    }

    fn read_delimiter_end(&mut self) -> Result<bool, MultipartError> {
        if self.buffer.starts_with(b"--") {
            self.state = ParserState::Done;
            self.buffer.clear();
            return Ok(true);
        }
        // White space may follow a boundary (RFC 2046 section 5.1.1).
        let blanks = self
            .buffer
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\t'))
            .count();
        match &self.buffer[blanks..] {
            [] | [b'\r'] if blanks < MAX_HEAD_BYTES => Ok(false),
            [b'-'] if blanks == 0 => Ok(false),
            [b'\r', b'\n', ..] => {
                // The CRLF is kept: for a part without headers, it is half of the empty line that
                // ends the head.
                self.buffer.advance(blanks);
                self.parts += 1;
                if self.parts > MAX_PARTS {
                    return Err(MultipartError("too many parts"));
                }
                self.state = ParserState::PartHead;
                Ok(true)
            }
            _ => Err(MultipartError("a boundary is followed by something else")),
        }
    }

    fn read_head(&mut self) -> Result<Option<FormEvent>, MultipartError> {
        let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
            return if self.buffer.len() > MAX_HEAD_BYTES {
                Err(MultipartError("the head of a part is too long"))
            } else {
                Ok(None)
            };
        };
        let head = parse_head(&self.buffer[..end])?;
        self.buffer.advance(end + 4);
        self.state = ParserState::Body;
        Ok(Some(FormEvent::Begin(head)))
    }

    fn read_body(&mut self) -> Option<FormEvent> {
        if let Some(at) = find(&self.buffer, &self.delimiter) {
            if at > 0 {
                return Some(FormEvent::Data(self.buffer.split_to(at).freeze()));
            }
            self.buffer.advance(self.delimiter.len());
            self.state = ParserState::Delimited;
            return Some(FormEvent::End);
        }
        let safe = self.buffer.len() - partial_match_len(&self.buffer, &self.delimiter);
        (safe > 0).then(|| FormEvent::Data(self.buffer.split_to(safe).freeze()))
    }
}

fn parse_head(bytes: &[u8]) -> Result<PartHead, MultipartError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| MultipartError("the head of a part is not UTF-8"))?;
    let (mut disposition, mut content_type) = (None, None);
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line
            .split_once(':')
            .ok_or(MultipartError("a header of a part has no colon"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" if disposition.is_none() => disposition = Some(value),
            "content-type" if content_type.is_none() => content_type = Some(value.to_owned()),
            "content-disposition" | "content-type" => {
                return Err(MultipartError("a header of a part is repeated"));
            }
            "content-transfer-encoding" if !matches!(value, "binary" | "8bit" | "7bit") => {
                return Err(MultipartError("parts are sent without a transfer encoding"));
            }
            _ => {}
        }
    }
    let disposition = disposition.filter(|value| essence(value).eq_ignore_ascii_case("form-data"));
    let disposition = disposition.ok_or(MultipartError("a part is not form data"))?;
    let name = parameter(disposition, "name").ok_or(MultipartError("a part has no name"))?;
    Ok(PartHead {
        name,
        file_name: parameter(disposition, "filename"),
        content_type,
    })
}

/// Returns the index of `needle`. Searches for the first byte, which is rare in `haystack`.
fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = haystack[from..].iter().position(|byte| *byte == needle[0]) {
        let at = from + found;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Returns the length of the longest suffix of `haystack` that is a proper prefix of `needle`.
fn partial_match_len(haystack: &[u8], needle: &[u8]) -> usize {
    let max = haystack.len().min(needle.len() - 1);
    (1..=max)
        .rev()
        .find(|length| needle.starts_with(&haystack[haystack.len() - length..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
