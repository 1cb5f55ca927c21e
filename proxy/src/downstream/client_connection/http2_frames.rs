use std::time::{Duration, Instant};

/// Where an HTTP/2 connection stands between its frames (RFC 9113 section 4.1).
///
/// Nobody behind this point sees a header block before its last CONTINUATION, nor a frame before
/// its last byte; so it is here that one which never ends is noticed. Bodies are watched by their
/// streams.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the client's preface that are still to come (section 3.4).
    preface: usize,
    head: [u8; HEAD],
    /// Bytes of the head that are there.
    filled: usize,
    /// Bytes of the payload that are still to come.
    payload: usize,
    /// Whether the SETTINGS frame that ends the preface has begun.
    settings: bool,
    /// Whether a header block is open: it goes on with the next frame.
    block: bool,
    /// Since when something other than a body has begun and not ended.
    since: Option<Instant>,
}

const HEAD: usize = 9;
const PREFACE: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// A preface that does not end in SETTINGS (RFC 9113 section 3.4); the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefaceFault;

impl Default for Frames {
    fn default() -> Self {
        Self {
            preface: PREFACE,
            head: [0; HEAD],
            filled: 0,
            payload: 0,
            settings: false,
            block: false,
            since: None,
        }
    }
}

impl Frames {
    /// Follows what has arrived.
    ///
    /// # Errors
    /// The first frame is not SETTINGS.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> Result<(), PrefaceFault> {
        let start = bytes.len().min(self.preface);
        self.preface -= start;
        bytes = &bytes[start..];
        while !bytes.is_empty() {
            if self.filled < HEAD {
                let taken = bytes.len().min(HEAD - self.filled);
                self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken;
                bytes = &bytes[taken..];
                if self.filled < HEAD {
                    break;
                }
                let [high, middle, low, kind, flags, ..] = self.head;
                if !self.settings && (kind != SETTINGS || flags & ACK != 0) {
                    return Err(PrefaceFault);
                }
                self.settings = true;
                self.payload =
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            }
            let taken = bytes.len().min(self.payload);
            self.payload -= taken;
            bytes = &bytes[taken..];
            if self.payload == 0 {
                self.end_frame();
            }
        }
        if self.is_open() {
            self.since.get_or_insert_with(Instant::now);
        } else {
            self.since = None;
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block = flags & END_HEADERS == 0;
        }
        self.filled = 0;
        if !self.block {
            self.since = None;
        }
    }

    fn is_open(&self) -> bool {
        let within = self.filled > 0 && !(self.filled == HEAD && self.head[3] == DATA);
        self.preface > 0 || self.block || within
    }

    /// When what is open must have ended.
    pub(super) fn due(&self, within: Duration) -> Option<Instant> {
        self.since.map(|since| since + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD + payload, 0);
        bytes
    }

    #[track_caller]
    fn follow(frames: &mut Frames, bytes: &[u8]) {
        assert_eq!(frames.advance(bytes), Ok(()));
    }

    fn open() -> Frames {
        let mut frames = Frames::default();
        follow(&mut frames, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        follow(&mut frames, &frame(SETTINGS, 0, 0));
        frames
    }

    #[test]
    fn a_preface_and_a_frame_are_open_until_their_last_byte() {
        let mut frames = Frames::default();
        follow(&mut frames, b"PRI * HTTP/2.0");
        assert!(frames.due(SOON).is_some());
        follow(&mut frames, b"\r\n\r\nSM\r\n\r\n");
        assert_eq!(frames.due(SOON), None);
        for (at, byte) in frame(4, 0, 6).iter().enumerate() {
            follow(&mut frames, &[*byte]);
            assert_eq!(frames.due(SOON).is_some(), at + 1 < HEAD + 6, "byte {at}");
        }
    }

    #[test]
    fn a_header_block_is_open_until_its_last_continuation() {
        let mut frames = open();
        let one = frame(HEADERS, 0, 3);
        follow(&mut frames, &one);
        let since = frames.since.expect("open");
        follow(&mut frames, &frame(CONTINUATION, 0, 0));
        assert_eq!(frames.since, Some(since), "from its beginning");
        follow(
            &mut frames,
            &[frame(CONTINUATION, END_HEADERS, 5), frame(4, 0, 0)].concat(),
        );
        assert_eq!(frames.due(SOON), None);
    }

    #[test]
    fn a_body_may_take_its_time() {
        let mut frames = open();
        let body = frame(DATA, 0, 1000);
        follow(&mut frames, &body[..500]);
        assert_eq!(frames.due(SOON), None);
        follow(
            &mut frames,
            &[&body[500..], &frame(HEADERS, END_HEADERS, 4)[..7]].concat(),
        );
        assert!(frames.due(SOON).is_some());
    }

    #[test]
    fn preface_ends_in_settings() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for first in [
            frame(HEADERS, END_HEADERS, 3),
            frame(6, 0, 8),
            frame(SETTINGS, ACK, 0),
        ] {
            let mut frames = Frames::default();
            assert_eq!(
                frames.advance(&[&preface[..], &first].concat()),
                Err(PrefaceFault)
            );
        }
        follow(&mut open(), &frame(HEADERS, END_HEADERS, 3));
    }
}
