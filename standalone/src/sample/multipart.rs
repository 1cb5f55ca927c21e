//! `multipart/form-data` (RFC 7578, RFC 2046) as a stream: bytes go in, events come out, and no
//! part is ever held in memory whole.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::parameter::{essence, parameter};

/// Longest head of a part, and longest preamble.
const MAX_HEAD: usize = 8 << 10;

/// Parts in one body; a form has two.
const MAX_PARTS: usize = 32;

/// What was found next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A part begins.
    Begin(Head),
    /// Some bytes of the part.
    Data(Bytes),
    /// The part is whole.
    End,
}

/// What stands before the bytes of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The field's name.
    pub(super) name: String,
    /// The file's name, if it is a file.
    pub(super) file_name: Option<String>,
    /// The content type that the client gave.
    pub(super) content_type: Option<String>,
}

/// Why a body cannot be read, in words for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter: `--`, or the end of its line.
    Delimited,
    /// In the head of a part.
    Head,
    /// In the bytes of a part.
    Body,
    /// After the last delimiter; what follows does not count.
    Done,
}

/// The reader.
#[derive(Debug)]
pub(super) struct Multipart {
    /// CRLF, two dashes, the boundary.
    delimiter: Vec<u8>,
    state: State,
    buffer: BytesMut,
    parts: usize,
}

// === impl Multipart ===

impl Multipart {
    /// A reader for the boundary that the content type names; `None` if it is not form data with
    /// one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
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
        // The body begins with a delimiter whose CRLF is not there: it is put there.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Self {
            delimiter,
            state: State::Preamble,
            buffer,
            parts: 0,
        }
    }

    /// Takes more of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.state != State::Done {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next event; `None` when more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Malformed> {
        loop {
            match self.state {
                State::Preamble => {
                    if !self.skip_preamble()? {
                        return Ok(None);
                    }
                }
                State::Delimited => {
                    if !self.read_delimiter_end()? {
                        return Ok(None);
                    }
                }
                State::Head => return self.read_head(),
                State::Body => return Ok(self.read_body()),
                State::Done => return Ok(None),
            }
        }
    }

    /// Whether the last delimiter has been seen: without it the body was cut off.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn skip_preamble(&mut self) -> Result<bool, Malformed> {
        let Some(at) = find(&self.buffer, &self.delimiter) else {
            return if self.buffer.len() > MAX_HEAD {
                Err(Malformed("no part begins"))
            } else {
                Ok(false)
            };
        };
        self.buffer.advance(at + self.delimiter.len());
        self.state = State::Delimited;
        Ok(true)
    }

    fn read_delimiter_end(&mut self) -> Result<bool, Malformed> {
        if self.buffer.starts_with(b"--") {
            self.state = State::Done;
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
            [] | [b'\r'] if blanks < MAX_HEAD => Ok(false),
            [b'-'] if blanks == 0 => Ok(false),
            [b'\r', b'\n', ..] => {
                // The CRLF stays: a part without a head would begin with half of the empty line.
                self.buffer.advance(blanks);
                self.parts += 1;
                if self.parts > MAX_PARTS {
                    return Err(Malformed("too many parts"));
                }
                self.state = State::Head;
                Ok(true)
            }
            _ => Err(Malformed("a boundary is followed by something else")),
        }
    }

    fn read_head(&mut self) -> Result<Option<Event>, Malformed> {
        let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
            return if self.buffer.len() > MAX_HEAD {
                Err(Malformed("the head of a part is too long"))
            } else {
                Ok(None)
            };
        };
        let head = parse_head(&self.buffer[..end])?;
        self.buffer.advance(end + 4);
        self.state = State::Body;
        Ok(Some(Event::Begin(head)))
    }

    fn read_body(&mut self) -> Option<Event> {
        if let Some(at) = find(&self.buffer, &self.delimiter) {
            if at > 0 {
                return Some(Event::Data(self.buffer.split_to(at).freeze()));
            }
            self.buffer.advance(self.delimiter.len());
            self.state = State::Delimited;
            return Some(Event::End);
        }
        let safe = self.buffer.len() - partial_suffix(&self.buffer, &self.delimiter);
        (safe > 0).then(|| Event::Data(self.buffer.split_to(safe).freeze()))
    }
}

fn parse_head(bytes: &[u8]) -> Result<Head, Malformed> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| Malformed("the head of a part is not UTF-8"))?;
    let (mut disposition, mut content_type) = (None, None);
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line
            .split_once(':')
            .ok_or(Malformed("a header of a part has no colon"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" if disposition.is_none() => disposition = Some(value),
            "content-type" if content_type.is_none() => content_type = Some(value.to_owned()),
            "content-disposition" | "content-type" => {
                return Err(Malformed("a header of a part stands twice"));
            }
            "content-transfer-encoding" if !matches!(value, "binary" | "8bit" | "7bit") => {
                return Err(Malformed("parts are sent without a transfer encoding"));
            }
            _ => {}
        }
    }
    let disposition = disposition.filter(|value| essence(value).eq_ignore_ascii_case("form-data"));
    let disposition = disposition.ok_or(Malformed("a part is not form data"))?;
    let name = parameter(disposition, "name").ok_or(Malformed("a part has no name"))?;
    Ok(Head {
        name,
        file_name: parameter(disposition, "filename"),
        content_type,
    })
}

/// Where `needle` begins. It looks for the first byte, which is rare in what it looks through.
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

/// How many bytes at the end of `haystack` may be the beginning of `needle`.
fn partial_suffix(haystack: &[u8], needle: &[u8]) -> usize {
    let most = haystack.len().min(needle.len() - 1);
    (1..=most)
        .rev()
        .find(|length| needle.starts_with(&haystack[haystack.len() - length..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
