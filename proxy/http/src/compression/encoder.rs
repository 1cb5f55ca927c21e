//! Encoders of response bodies, and the budget of their memory.

use std::fmt;
use std::io::{self, Write};

use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::client_shares::BudgetPermit;
use crate::compression::ContentCoding;

/// Logarithm of the window of brotli: 256 KiB, which bounds the memory of encoder and decoder.
const WINDOW_BITS: u32 = 18;

/// Quality of brotli, of 11.
const BROTLI_LEVEL: u32 = 4;

/// Level of gzip, of 9.
const GZIP_LEVEL: u32 = 5;

/// Bytes of the output buffer within brotli's encoder.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Maximum bytes of all encoders. A response that exceeds them is not compressed.
pub const MAX_ENCODER_BYTES: usize = 256 << 20;

/// The encoder of a response body.
pub struct BodyEncoder {
    coding: ContentCoding,
    /// `None` after the end of the body.
    writer: Option<Writer>,
    /// Whether every part is sent at once: the length of the body is unknown, so that the upstream
    /// may pause between its parts.
    flushes: bool,
    _permit: BudgetPermit,
}

enum Writer {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
}

/// Returns the approximate memory of an encoder, in bytes.
pub const fn encoder_bytes(coding: ContentCoding) -> usize {
    match coding {
        ContentCoding::Gzip => 320 << 10,
        ContentCoding::Brotli => 3 << 20,
    }
}

impl BodyEncoder {
    /// Creates an encoder with a permit for [`encoder_bytes`]. `is_length_known` is whether the
    /// upstream has announced the length of the body.
    pub fn new(coding: ContentCoding, is_length_known: bool, permit: BudgetPermit) -> Self {
        Self {
            coding,
            writer: Some(Writer::new(coding)),
            flushes: !is_length_known,
            _permit: permit,
        }
    }

    /// Returns the content coding of the response.
    pub fn coding(&self) -> ContentCoding {
        self.coding
    }

    /// Encodes the next part of the body. Returns what is to be sent; `None` if nothing is.
    ///
    /// # Errors
    /// A failure of the encoder.
    pub fn encode(&mut self, part: Option<&[u8]>, end: bool) -> io::Result<Option<Bytes>> {
        let Some(mut writer) = self.writer.take() else {
            return Ok(None);
        };
        let part = part.unwrap_or_default();
        writer.inner().write_all(part)?;
        let encoded = if end {
            writer.finish()?
        } else {
            if self.flushes && !part.is_empty() {
                writer.inner().flush()?;
            }
            let encoded = std::mem::take(writer.output());
            self.writer = Some(writer);
            encoded
        };
        Ok(Some(encoded)
            .filter(|encoded| !encoded.is_empty())
            .map(Bytes::from))
    }
}

impl fmt::Debug for BodyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyEncoder")
            .field("coding", &self.coding)
            .finish_non_exhaustive()
    }
}

impl Writer {
    fn new(coding: ContentCoding) -> Self {
        let output = Vec::new();
        match coding {
            ContentCoding::Gzip => Self::Gzip(GzEncoder::new(output, Compression::new(GZIP_LEVEL))),
            ContentCoding::Brotli => Self::Brotli(Box::new(CompressorWriter::new(
                output,
                BROTLI_BUFFER_BYTES,
                BROTLI_LEVEL,
                WINDOW_BITS,
            ))),
        }
    }

    /// Returns the encoded data that has not been taken.
    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
        }
    }

    fn inner(&mut self) -> &mut dyn Write {
        match self {
            Self::Gzip(encoder) => encoder,
            Self::Brotli(encoder) => encoder,
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Brotli(encoder) => Ok(encoder.into_inner()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::client_shares::SharedBudget;

    const ALL: [ContentCoding; 2] = [ContentCoding::Gzip, ContentCoding::Brotli];

    fn encoder(coding: ContentCoding, is_length_known: bool) -> BodyEncoder {
        let permit = SharedBudget::new(1).reserve(None, 1).expect("a permit");
        BodyEncoder::new(coding, is_length_known, permit)
    }

    /// Returns what can be decoded of a stream that may not have ended.
    fn decode(coding: ContentCoding, encoded: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        let _ended_or_not = match coding {
            ContentCoding::Gzip => flate2::read::GzDecoder::new(encoded).read_to_end(&mut decoded),
            ContentCoding::Brotli => {
                brotli::Decompressor::new(encoded, 1).read_to_end(&mut decoded)
            }
        };
        decoded
    }

    fn text(length: usize) -> Vec<u8> {
        let word = |at: usize| format!("{} ", at.wrapping_mul(2_654_435_761) % 1000);
        (0..)
            .flat_map(|at| word(at).into_bytes())
            .take(length)
            .collect()
    }

    #[test]
    fn encoded_parts_decode_to_the_body() {
        let body = text(300_000);
        for coding in ALL {
            for part_len in [1_000, 70_000] {
                let mut encoder = encoder(coding, true);
                let mut encoded = Vec::new();
                for part in body.chunks(part_len) {
                    let part = encoder.encode(Some(part), false).expect("encodes");
                    encoded.extend_from_slice(&part.unwrap_or_default());
                }
                let end = encoder.encode(None, true).expect("ends");
                encoded.extend_from_slice(&end.expect("the end"));
                assert!(encoded.len() < body.len() / 2, "{coding:?}");
                assert!(decode(coding, &encoded) == body, "{coding:?}");
                assert_eq!(encoder.encode(Some(b"x"), true).expect("nothing"), None);
            }
        }
    }

    #[test]
    fn part_of_unknown_length_can_be_decoded_at_once() {
        for coding in ALL {
            let mut encoder = encoder(coding, false);
            let (mut encoded, mut want) = (Vec::new(), Vec::new());
            for line in ["first\n", "second\n", "third\n"] {
                let part = encoder
                    .encode(Some(line.as_bytes()), false)
                    .expect("encodes");
                encoded.extend_from_slice(&part.expect("a part"));
                want.extend_from_slice(line.as_bytes());
                assert_eq!(decode(coding, &encoded), want, "{coding:?}");
                assert_eq!(encoder.encode(None, false).expect("nothing"), None);
            }
        }
    }

    #[test]
    fn empty_body_is_a_valid_stream() {
        for coding in ALL {
            let end = encoder(coding, false).encode(None, true).expect("ends");
            assert_eq!(decode(coding, &end.expect("a stream")), b"", "{coding:?}");
        }
    }
}
