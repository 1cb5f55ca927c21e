//! Data that is to be sent to an upstream.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Maximum bytes of a part of the body that is copied behind the head, so that both fit into one
/// packet or TLS record.
const MAX_COPIED_BYTES: usize = 16 << 10;

/// Parts up to this size are copied, so that a body in many small ones does not become many.
const SMALL_BYTES: usize = 1 << 10;

/// The unsent request head and unsent parts of the body, which are sent in one system call.
#[derive(Debug, Default)]
pub struct OutboundData {
    parts: VecDeque<Bytes>,
    /// Copied data behind the parts; at first the head.
    copied: BytesMut,
    /// Whether the body is sent in chunks, the last of which has not been added.
    is_chunked: bool,
}

impl OutboundData {
    /// Creates the data of a request whose body is sent in chunks, if `is_chunked`.
    pub fn new(head: BytesMut, is_chunked: bool) -> Self {
        Self {
            parts: VecDeque::new(),
            copied: head,
            is_chunked,
        }
    }

    /// Adds a part of the body.
    pub fn append(&mut self, part: Bytes) {
        if part.is_empty() {
            return;
        }
        if self.is_chunked {
            self.push(format!("{:x}\r\n", part.len()).into());
        }
        self.push(part);
        if self.is_chunked {
            self.push(Bytes::from_static(b"\r\n"));
        }
    }

    /// Adds the end of the body, once.
    pub fn finish(&mut self) {
        if std::mem::take(&mut self.is_chunked) {
            self.push(Bytes::from_static(b"0\r\n\r\n"));
        }
    }

    fn push(&mut self, part: Bytes) {
        let follows_head = self.copied.has_remaining() && self.parts.is_empty();
        if part.len() <= SMALL_BYTES || (follows_head && part.len() <= MAX_COPIED_BYTES) {
            self.copied.extend_from_slice(&part);
            return;
        }
        if self.copied.has_remaining() {
            self.parts.push_back(self.copied.split().freeze());
        }
        self.parts.push_back(part);
    }
}

impl Buf for OutboundData {
    fn remaining(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum::<usize>() + self.copied.len()
    }

    fn chunk(&self) -> &[u8] {
        self.parts
            .front()
            .map_or(&self.copied[..], |part| &part[..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let copied = Some(&self.copied[..]).filter(|copied| !copied.is_empty());
        let chunks = self.parts.iter().map(|part| &part[..]).chain(copied);
        let mut filled = 0;
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        let mut left = count;
        while let Some(part) = self.parts.front_mut() {
            if left < part.len() {
                return part.advance(left);
            }
            left -= part.len();
            self.parts.pop_front();
        }
        self.copied.advance(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_the_head_and_all_parts_in_order_at_every_write_size() {
        let part = |at: usize, size: usize| Bytes::from(vec![b'a' + at as u8; size]);
        let small = [100, 0, 256, 1, 257];
        let large = [100, 0, 16 << 10, 1, (16 << 10) + 1];
        for (write_size, sizes) in [
            (1, small),
            (3, small),
            (4, large),
            (104, large),
            (16 << 10, large),
            (usize::MAX, large),
        ] {
            let parts = sizes.iter().enumerate().map(|(at, size)| part(at, *size));
            let head = std::iter::once(Bytes::from_static(b"HEAD"));
            let all: Vec<u8> = head.chain(parts).flatten().collect();
            let mut data = OutboundData::new(BytesMut::from("HEAD"), false);
            for (at, size) in sizes.iter().enumerate() {
                data.append(part(at, *size));
            }
            let mut sent = Vec::new();
            while data.has_remaining() {
                assert_eq!(data.remaining(), all.len() - sent.len());
                let mut slices = [IoSlice::new(&[]); 8];
                let count = data.chunks_vectored(&mut slices);
                let flat: Vec<u8> = slices[..count].iter().flat_map(|it| it.to_vec()).collect();
                assert_eq!(flat.len(), data.remaining());
                assert!(flat.starts_with(data.chunk()));
                let size = write_size.min(flat.len());
                sent.extend_from_slice(&flat[..size]);
                data.advance(size);
            }
            assert!(sent == all, "{write_size}");
        }
    }

    #[test]
    fn many_small_chunks_are_one_slice() {
        let mut data = OutboundData::new(BytesMut::from("HEAD"), true);
        for _ in 0..5_000 {
            data.append(Bytes::from_static(b"x"));
        }
        data.append(Bytes::from(vec![b'y'; 20_000]));
        data.append(Bytes::from_static(b"z"));
        data.finish();
        data.finish();
        let count = data.chunks_vectored(&mut [IoSlice::new(&[]); 8]);
        assert_eq!(count, 3);
        let text = String::from_utf8(data.copy_to_bytes(data.remaining()).to_vec());
        let large = format!("4e20\r\n{}\r\n", "y".repeat(20_000));
        let expected = format!(
            "HEAD{}{large}1\r\nz\r\n0\r\n\r\n",
            "1\r\nx\r\n".repeat(5_000)
        );
        assert!(text.expect("text") == expected);
    }
}
