//! Framing of request bodies (RFC 9112 sections 6 and 7).
//!
//! The scanner consumes bytes as they arrive and returns how many of them belong to the current
//! message. It accepts only well-formed framing: exact CRLF, hexadecimal sizes that fit into 64
//! bits, bounded chunk extensions and trailers. Trailers are not forwarded, so that no field
//! bypasses the head check.

use crate::message::head::BodyKind;
use crate::message::headers;

/// Maximum bytes of a chunk extension, and of all trailers together.
const MAX_EXTENSION_BYTES: u16 = 1024;

/// Malformed body framing. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingFault;

/// The position in a message body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Remaining bytes of a body with a length.
    Length(u64),
    /// Within a chunked body.
    Chunked(ChunkState),
    /// The message is complete; the following bytes belong to the next message.
    Done,
    /// After a 101 response: all bytes pass until the connection is closed.
    Tunnel,
}

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// In the chunk size: value and number of digits.
    Size(u64, u8),
    /// In the chunk extensions: chunk size, bytes of extensions and position in them.
    Extension(u64, u16, ExtensionState),
    /// Before the LF of a size line.
    SizeEnd(u64),
    /// In the chunk data: remaining bytes.
    Data(u64),
    /// Before the CR after the data.
    DataCr,
    /// Before the LF after the data.
    DataLf,
    /// After the last chunk, before a trailer or the CR of the empty line.
    LastCr,
    /// In the trailers: bytes of trailers and position in them.
    Trailer(u16, TrailerState),
    /// Before the final LF.
    LastLf,
}

/// The position in the extensions of a chunk (RFC 9112 section 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionState {
    /// Before a name.
    NameStart,
    /// In a name.
    Name,
    /// In white space after a name.
    NameEnd,
    /// Before a value.
    ValueStart,
    /// In a token value.
    Value,
    /// In a quoted value.
    Quoted,
    /// After a backslash in a quoted value.
    Escaped,
    /// After the closing quote.
    Closed,
    /// In white space after a value.
    ValueEnd,
    /// In any printable characters, accepted from upstreams only.
    Any,
}

/// The position in the trailers (RFC 9112 section 7.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailerState {
    /// Before a field name or the CR of the empty line.
    Start,
    /// In a field name.
    Name,
    /// In a field value.
    Value,
    /// Before the LF of a field line.
    Lf,
}

impl BodyFraming {
    /// Returns the state before the first byte of a body.
    #[must_use]
    pub fn begin(kind: BodyKind) -> Self {
        match kind {
            BodyKind::Length(0) => Self::Done,
            BodyKind::Length(length) => Self::Length(length),
            BodyKind::Chunked => Self::Chunked(ChunkState::Size(0, 0)),
        }
    }

    /// Returns how many of the leading `bytes` belong to this message.
    ///
    /// # Errors
    /// Malformed chunked framing.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, FramingFault> {
        match self {
            Self::Tunnel => Ok(bytes.len()),
            Self::Done => Ok(0),
            Self::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= taken as u64;
                if *left == 0 {
                    *self = Self::Done;
                }
                Ok(taken)
            }
            Self::Chunked(_) => self.advance_chunks(bytes),
        }
    }

    fn advance_chunks(&mut self, bytes: &[u8]) -> Result<usize, FramingFault> {
        let mut at = 0;
        while let Self::Chunked(chunk) = *self {
            let Some(byte) = bytes.get(at) else { break };
            if let ChunkState::Data(left) = chunk {
                let taken = usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - at);
                at += taken;
                let left = left - taken as u64;
                *self = Self::Chunked(if left == 0 {
                    ChunkState::DataCr
                } else {
                    ChunkState::Data(left)
                });
                continue;
            }
            at += 1;
            *self = chunk.step(*byte)?.map_or(Self::Done, Self::Chunked);
        }
        Ok(at)
    }
}

impl ChunkState {
    /// Returns the state after one byte; `None` after the last byte of the message.
    pub(crate) fn step(self, byte: u8) -> Result<Option<Self>, FramingFault> {
        let next = match (self, byte) {
            (Self::Size(size, digits), byte) if byte.is_ascii_hexdigit() => {
                if digits == 15 {
                    return Err(FramingFault);
                }
                let digit = (byte as char).to_digit(16).ok_or(FramingFault)?;
                Self::Size(size * 16 + u64::from(digit), digits + 1)
            }
            (Self::Size(size, 1..), b'\r') => Self::SizeEnd(size),
            (Self::Size(size, 1..), b';') => Self::Extension(size, 0, ExtensionState::NameStart),
            (Self::Extension(size, _, extension), b'\r') if extension.may_end() => {
                Self::SizeEnd(size)
            }
            (Self::Extension(size, length, extension), _) if length < MAX_EXTENSION_BYTES => {
                Self::Extension(size, length + 1, extension.step(byte)?)
            }
            (Self::SizeEnd(0), b'\n') => Self::LastCr,
            (Self::SizeEnd(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::Size(0, 0),
            (Self::LastCr | Self::Trailer(_, TrailerState::Start), b'\r') => Self::LastLf,
            (Self::LastCr, _) => Self::Trailer(1, TrailerState::Start.step(byte)?),
            (Self::Trailer(length, trailer), _) if length < MAX_EXTENSION_BYTES => {
                Self::Trailer(length + 1, trailer.step(byte)?)
            }
            (Self::LastLf, b'\n') => return Ok(None),
            _ => return Err(FramingFault),
        };
        Ok(Some(next))
    }
}

impl ExtensionState {
    fn step(self, byte: u8) -> Result<Self, FramingFault> {
        let is_token = headers::is_token(&[byte]);
        Ok(match (self, byte) {
            (Self::NameStart, b'\t' | b' ') => Self::NameStart,
            (Self::NameStart | Self::Name, _) if is_token => Self::Name,
            (Self::Name | Self::NameEnd, b'\t' | b' ') => Self::NameEnd,
            (Self::Name | Self::NameEnd, b'=') => Self::ValueStart,
            (Self::ValueStart, b'\t' | b' ') => Self::ValueStart,
            (Self::ValueStart, b'"') => Self::Quoted,
            (Self::ValueStart | Self::Value, _) if is_token => Self::Value,
            (Self::Quoted, b'"') => Self::Closed,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, b'\t' | 0x20..=0x7e) => Self::Quoted,
            (Self::Value | Self::Closed | Self::ValueEnd, b'\t' | b' ') => Self::ValueEnd,
            (Self::Name | Self::NameEnd | Self::Value | Self::Closed | Self::ValueEnd, b';') => {
                Self::NameStart
            }
            (Self::Any, b'\t' | 0x20..=0x7e) => Self::Any,
            _ => return Err(FramingFault),
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Name | Self::Value | Self::Closed | Self::Any)
    }
}

impl TrailerState {
    fn step(self, byte: u8) -> Result<Self, FramingFault> {
        Ok(match (self, byte) {
            (Self::Start | Self::Name, _) if headers::is_token(&[byte]) => Self::Name,
            (Self::Name, b':') => Self::Value,
            (Self::Value, b'\t' | 0x20..=0x7e | 0x80..) => Self::Value,
            (Self::Value, b'\r') => Self::Lf,
            (Self::Lf, b'\n') => Self::Start,
            _ => return Err(FramingFault),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan(bytes: &[u8]) -> Result<(usize, BodyFraming), FramingFault> {
        let mut framing = BodyFraming::begin(BodyKind::Chunked);
        framing.advance(bytes).map(|taken| (taken, framing))
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        let bodies = "\r\n|;\r\n|3\nabc\r\n|3\r\nabcd\r\n|3\r\nabc\n|0x3\r\n| 3\r\n|3 \r\n|-1\r\n|\
            fffffffffffffffff\r\n|0\r\n\n|3;a\nb\r\n|3;\x01\r\n|g\r\n";
        // Extensions without a name or a value, or with more than one.
        let extended = "3;|3; |3;;a|3;=b|3;a=|3;a |3;a b|3;a=b c|3;a=\"b|3;a=\"b\"c".split('|');
        // Trailers that are not field lines.
        let trailers =
            "X|: a|X : a|X: a\r\n folded|X: a\n|X: a\rb|X: \x01|GET / HTTP/1.1".split('|');
        let all = extended.map(|text| format!("{text}\r\n"));
        let all = all.chain(trailers.map(|text| format!("0\r\n{text}\r\n\r\n")));
        for body in all.chain(bodies.split('|').map(str::to_owned)) {
            assert_eq!(scan(body.as_bytes()), Err(FramingFault), "{body:?}");
        }
    }

    #[test]
    fn extensions_and_trailers_belong_to_the_body() {
        for body in [
            "3;a\r\nabc\r\n0\r\n\r\n",
            "3; a = b ;c;d=\"e;\\\" f\"\r\nabc\r\n0;x=y\r\n\r\n",
            "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
            "0\r\nX-Sum:\r\nx-other:\ta b\u{e9}\r\n\r\n",
        ] {
            let actual = scan(format!("{body}GET").as_bytes());
            assert_eq!(actual, Ok((body.len(), BodyFraming::Done)), "{body:?}");
        }
        let endless = format!(
            "0\r\nX: {}\r\n\r\n",
            "y".repeat(usize::from(MAX_EXTENSION_BYTES))
        );
        assert_eq!(scan(endless.as_bytes()), Err(FramingFault));
    }

    proptest! {
        #[test]
        fn chunked_body_is_found_in_any_fragmentation(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            tail in proptest::collection::vec(any::<u8>(), 0..20),
            read_len in 1_usize..30,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let length = wire.len();
            wire.extend_from_slice(&tail);
            let mut framing = BodyFraming::begin(BodyKind::Chunked);
            let mut taken = 0;
            for part in wire.chunks(read_len) {
                taken += framing.advance(part).expect("well formed");
            }
            prop_assert_eq!((taken, framing), (length, BodyFraming::Done));
        }
    }
}
