//! Encoders of response bodies, and the budget of their memory.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::client_shares::BudgetPermit;
use crate::compression::ContentCoding;

/// Logarithm of the window of brotli and zstd: 256 KiB, which bounds the memory of the encoder, and
/// that of the decoder (RFC 9659 permits 8 MiB).
const WINDOW_BITS: u32 = 18;

/// Bytes of the output buffer within brotli's encoder.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Maximum bytes of all encoders. A response that exceeds them is not compressed.
pub const MAX_ENCODER_BYTES: usize = 256 << 20;

/// Where encoders are counted.
pub trait EncoderMetrics: Send + Sync {
    /// Counts a response that is not compressed, because the memory of encoders is exhausted.
    fn count_skipped(&self);

    /// Counts a response whose encoder has ended, with the bytes of its body before and after it.
    fn count_encoded(&self, coding: ContentCoding, bytes_in: u64, bytes_out: u64);
}

/// The encoder of a response body.
pub struct BodyEncoder {
    coding: ContentCoding,
    /// `None` after the end of the body.
    writer: Option<Writer>,
    /// Whether every part is sent at once: the length of the body is unknown, so that the upstream
    /// may pause between its parts.
    flushes: bool,
    bytes_in: u64,
    bytes_out: u64,
    metrics: Arc<dyn EncoderMetrics>,
    _permit: BudgetPermit,
}

enum Writer {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

/// Returns the approximate memory of an encoder, in bytes.
const fn encoder_bytes(coding: ContentCoding) -> usize {
    match coding {
        ContentCoding::Gzip => 320 << 10,
        ContentCoding::Brotli => 3 << 20,
        ContentCoding::Zstd => 4 << 20,
    }
}

/// Returns the level of a coding.
const fn level_of(coding: ContentCoding) -> u32 {
    match coding {
        ContentCoding::Gzip => 5,
        ContentCoding::Brotli => 4,
        ContentCoding::Zstd => 3,
    }
}

// === impl BodyEncoder ===

impl BodyEncoder {
    /// Creates an encoder. `is_length_known` is whether the upstream has announced the length of the
    /// body. `reserve` reserves this number of bytes. Returns `None`, and counts the response, if they
    /// are not available.
    pub fn new(
        coding: ContentCoding,
        is_length_known: bool,
        reserve: impl FnOnce(usize) -> Option<BudgetPermit>,
        metrics: Arc<dyn EncoderMetrics>,
    ) -> Option<Box<Self>> {
        let permit = reserve(encoder_bytes(coding));
        let writer = permit
            .is_some()
            .then(|| Writer::new(coding, level_of(coding)).ok());
        let (Some(permit), Some(writer)) = (permit, writer.flatten()) else {
            metrics.count_skipped();
            return None;
        };
        Some(Box::new(Self {
            coding,
            writer: Some(writer),
            flushes: !is_length_known,
            bytes_in: 0,
            bytes_out: 0,
            metrics,
            _permit: permit,
        }))
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
        self.bytes_in += part.len() as u64;
        writer.write_all(part)?;
        let encoded = if end {
            writer.finish()?
        } else {
            if self.flushes && !part.is_empty() {
                writer.flush()?;
            }
            let encoded = std::mem::take(writer.output());
            self.writer = Some(writer);
            encoded
        };
        self.bytes_out += encoded.len() as u64;
        Ok(Some(encoded)
            .filter(|encoded| !encoded.is_empty())
            .map(Bytes::from))
    }
}

impl Drop for BodyEncoder {
    fn drop(&mut self) {
        let (bytes_in, bytes_out) = (self.bytes_in, self.bytes_out);
        self.metrics.count_encoded(self.coding, bytes_in, bytes_out);
    }
}

impl fmt::Debug for BodyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyEncoder")
            .field("coding", &self.coding)
            .finish_non_exhaustive()
    }
}

// === impl Writer ===

impl Writer {
    fn new(coding: ContentCoding, level: u32) -> io::Result<Self> {
        let output = Vec::new();
        Ok(match coding {
            ContentCoding::Gzip => Self::Gzip(GzEncoder::new(output, Compression::new(level))),
            ContentCoding::Brotli => Self::Brotli(Box::new(CompressorWriter::new(
                output,
                BROTLI_BUFFER_BYTES,
                level,
                WINDOW_BITS,
            ))),
            ContentCoding::Zstd => {
                let level = i32::try_from(level).unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
                let mut encoder = zstd::stream::write::Encoder::new(output, level)?;
                encoder.window_log(WINDOW_BITS)?;
                Self::Zstd(encoder)
            }
        })
    }

    /// Returns the encoded data that has not been taken.
    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
        }
    }

    fn inner(&mut self) -> &mut dyn Write {
        match self {
            Self::Gzip(encoder) => encoder,
            Self::Brotli(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Brotli(encoder) => Ok(encoder.into_inner()),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.inner().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner().flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::client_shares::SharedBudget;

    const ALL: [ContentCoding; 3] = [
        ContentCoding::Gzip,
        ContentCoding::Brotli,
        ContentCoding::Zstd,
    ];

    /// The number of skipped responses.
    #[derive(Default)]
    struct Skipped(AtomicUsize);

    impl EncoderMetrics for Skipped {
        fn count_skipped(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn count_encoded(&self, _coding: ContentCoding, _bytes_in: u64, _bytes_out: u64) {}
    }

    fn encoder(coding: ContentCoding, is_length_known: bool) -> BodyEncoder {
        let reserve = |bytes| SharedBudget::new(bytes).reserve(None, bytes);
        let metrics = Arc::<Skipped>::default();
        let encoder = BodyEncoder::new(coding, is_length_known, reserve, metrics);
        *encoder.expect("an encoder")
    }

    /// Returns what can be decoded of a stream that may not have ended.
    fn decode(coding: ContentCoding, encoded: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        let _ended_or_not = match coding {
            ContentCoding::Gzip => flate2::read::GzDecoder::new(encoded).read_to_end(&mut decoded),
            ContentCoding::Brotli => {
                brotli::Decompressor::new(encoded, 1).read_to_end(&mut decoded)
            }
            ContentCoding::Zstd => zstd::stream::read::Decoder::new(encoded)
                .expect("a decoder")
                .read_to_end(&mut decoded),
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

    #[test]
    fn response_beyond_the_budget_is_not_compressed() {
        let metrics = Arc::<Skipped>::default();
        let budget = SharedBudget::new(MAX_ENCODER_BYTES);
        let coding = ContentCoding::Gzip;
        let make = || {
            let reserve = |bytes| budget.reserve(None, bytes);
            BodyEncoder::new(coding, true, reserve, Arc::clone(&metrics) as _)
        };
        let held = budget.reserve(None, MAX_ENCODER_BYTES - encoder_bytes(coding));
        let last = make();
        assert!(held.is_some() && last.is_some());
        assert!(make().is_none());
        assert_eq!(metrics.0.load(Ordering::Relaxed), 1);
        drop(last);
        assert!(make().is_some(), "the memory is returned");
    }
}
