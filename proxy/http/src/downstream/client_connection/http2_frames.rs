//! Frame boundaries of HTTP/2 connections.

use std::time::{Duration, Instant};

/// Tracks the frame boundaries of an HTTP/2 connection (RFC 9113 section 4.1).
///
/// The HTTP/2 layer reports a header block only after its last CONTINUATION frame, and a frame only
/// after its last byte. Frames and header blocks that are never completed are therefore detected
/// here. The rate of DATA frames is limited per stream.
#[derive(Debug)]
pub(super) struct Http2FrameTracker {
    /// Remaining bytes of the client preface (section 3.4).
    preface_left: usize,
    header: [u8; FRAME_HEADER_BYTES],
    /// Bytes received of the current frame header.
    header_filled: usize,
    /// Remaining bytes of the current payload.
    payload_left: usize,
    /// Whether the SETTINGS frame that ends the preface has started.
    has_settings: bool,
    /// Whether a header block continues in the next frame.
    in_header_block: bool,
    /// Time since which a frame other than DATA is incomplete.
    open_since: Option<Instant>,
}

/// Hides the empty DATA frames of a connection that many clients share. The HTTP/2 layer closes a
/// connection after a hundred of them, which each of the clients can send.
#[derive(Debug)]
pub(super) struct EmptyDataFilter {
    /// Bytes until the next frame header.
    until_header: usize,
    /// Bytes at the beginning of the buffer that may be passed on.
    pub(super) checked: usize,
}

const FRAME_HEADER_BYTES: usize = 9;
const PREFACE_BYTES: usize = 24;

const FRAME_DATA: u8 = 0;
const FRAME_HEADERS: u8 = 1;
const FRAME_SETTINGS: u8 = 4;
const FRAME_CONTINUATION: u8 = 9;
const FLAG_END_HEADERS: u8 = 4;
const FLAG_ACK: u8 = 1;
const FLAG_END_STREAM: u8 = 1;
const FLAG_PADDED: u8 = 8;
/// A type that no specification defines: such frames are ignored (section 4.1).
const FRAME_UNKNOWN: u8 = 0xf0;

/// A preface that is not followed by SETTINGS (RFC 9113 section 3.4). The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefaceFault;

impl Default for Http2FrameTracker {
    fn default() -> Self {
        Self {
            preface_left: PREFACE_BYTES,
            header: [0; FRAME_HEADER_BYTES],
            header_filled: 0,
            payload_left: 0,
            has_settings: false,
            in_header_block: false,
            open_since: None,
        }
    }
}

impl Http2FrameTracker {
    /// Returns whether the client's preface and the beginning of its SETTINGS were received.
    pub(super) fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// The first frame is not SETTINGS.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> Result<(), PrefaceFault> {
        let start = bytes.len().min(self.preface_left);
        self.preface_left -= start;
        bytes = &bytes[start..];
        while !bytes.is_empty() {
            if self.header_filled < FRAME_HEADER_BYTES {
                let taken = bytes.len().min(FRAME_HEADER_BYTES - self.header_filled);
                self.header[self.header_filled..self.header_filled + taken]
                    .copy_from_slice(&bytes[..taken]);
                self.header_filled += taken;
                bytes = &bytes[taken..];
                if self.header_filled < FRAME_HEADER_BYTES {
                    break;
                }
                let [high, middle, low, kind, flags, ..] = self.header;
                if !self.has_settings && (kind != FRAME_SETTINGS || flags & FLAG_ACK != 0) {
                    return Err(PrefaceFault);
                }
                self.has_settings = true;
                self.payload_left =
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            }
            let taken = bytes.len().min(self.payload_left);
            self.payload_left -= taken;
            bytes = &bytes[taken..];
            if self.payload_left == 0 {
                self.end_frame();
            }
        }
        if self.is_open() {
            self.open_since.get_or_insert_with(Instant::now);
        } else {
            self.open_since = None;
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        let (kind, flags) = (self.header[3], self.header[4]);
        if matches!(kind, FRAME_HEADERS | FRAME_CONTINUATION) {
            self.in_header_block = flags & FLAG_END_HEADERS == 0;
        }
        self.header_filled = 0;
        if !self.in_header_block {
            self.open_since = None;
        }
    }

    fn is_open(&self) -> bool {
        let within = self.header_filled > 0
            && !(self.header_filled == FRAME_HEADER_BYTES && self.header[3] == FRAME_DATA);
        self.preface_left > 0 || self.in_header_block || within
    }

    /// Returns the time by which the incomplete frame must be complete.
    pub(super) fn deadline(&self, within: Duration) -> Option<Instant> {
        self.open_since.map(|open_since| open_since + within)
    }
}

impl Default for EmptyDataFilter {
    fn default() -> Self {
        Self {
            until_header: PREFACE_BYTES,
            checked: 0,
        }
    }
}

impl EmptyDataFilter {
    /// Checks the bytes that have been added to the buffer, and passes on whole frame headers only.
    pub(super) fn check(&mut self, buffer: &mut [u8]) {
        loop {
            let skipped = self.until_header.min(buffer.len() - self.checked);
            self.until_header -= skipped;
            self.checked += skipped;
            let header = buffer.get_mut(self.checked..self.checked + FRAME_HEADER_BYTES);
            let Some([high, middle, low, kind, flags, ..]) = header else {
                return;
            };
            self.until_header =
                usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            let is_last = *flags & (FLAG_END_STREAM | FLAG_PADDED) != 0;
            if self.until_header == 0 && *kind == FRAME_DATA && !is_last {
                *kind = FRAME_UNKNOWN;
            }
            self.checked += FRAME_HEADER_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_TIMEOUT: Duration = Duration::from_secs(1);

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        bytes.resize(FRAME_HEADER_BYTES + payload, 0);
        bytes
    }

    #[track_caller]
    fn follow(frames: &mut Http2FrameTracker, bytes: &[u8]) {
        assert_eq!(frames.advance(bytes), Ok(()));
    }

    fn open() -> Http2FrameTracker {
        let mut frames = Http2FrameTracker::default();
        follow(&mut frames, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        follow(&mut frames, &frame(FRAME_SETTINGS, 0, 0));
        frames
    }

    #[test]
    fn frame_is_open_until_its_last_byte() {
        let mut frames = Http2FrameTracker::default();
        follow(&mut frames, b"PRI * HTTP/2.0");
        assert!(frames.deadline(FRAME_TIMEOUT).is_some());
        follow(&mut frames, b"\r\n\r\nSM\r\n\r\n");
        assert_eq!(frames.deadline(FRAME_TIMEOUT), None);
        for (at, byte) in frame(4, 0, 6).iter().enumerate() {
            follow(&mut frames, &[*byte]);
            let actual = frames.deadline(FRAME_TIMEOUT).is_some();
            assert_eq!(actual, at + 1 < FRAME_HEADER_BYTES + 6, "byte {at}");
        }
    }

    #[test]
    fn data_frame_is_not_timed() {
        let mut frames = open();
        let body = frame(FRAME_DATA, 0, 1000);
        follow(&mut frames, &body[..500]);
        assert_eq!(frames.deadline(FRAME_TIMEOUT), None);
        let head = frame(FRAME_HEADERS, FLAG_END_HEADERS, 4);
        follow(&mut frames, &[&body[500..], &head[..7]].concat());
        assert!(frames.deadline(FRAME_TIMEOUT).is_some());
    }
}
