//! Data that is to be sent to an upstream.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Maximum bytes of a part of the body that is copied behind the head, so that both fit into one
/// packet or TLS record.
const MAX_COPIED_BYTES: usize = 16 << 10;

/// The unsent request head and unsent parts of the body, which are sent in one system call.
#[derive(Debug, Default)]
pub(super) struct OutboundData {
    head: BytesMut,
    parts: VecDeque<Bytes>,
}

impl OutboundData {
    pub(super) fn new(head: BytesMut) -> Self {
        Self {
            head,
            parts: VecDeque::new(),
        }
    }

    /// Adds a part of the body.
    pub(super) fn append(&mut self, part: Bytes) {
        if part.is_empty() {
            return;
        }
        let follows_head = self.head.has_remaining() && self.parts.is_empty();
        if follows_head && part.len() <= MAX_COPIED_BYTES {
            self.head.extend_from_slice(&part);
        } else {
            self.parts.push_back(part);
        }
    }
}

impl Buf for OutboundData {
    fn remaining(&self) -> usize {
        self.head.len() + self.parts.iter().map(Bytes::len).sum::<usize>()
    }

    fn chunk(&self) -> &[u8] {
        match self.parts.front() {
            Some(part) if self.head.is_empty() => part,
            Some(_) | None => &self.head,
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let chunks = std::iter::once(&self.head[..]).chain(self.parts.iter().map(|part| &part[..]));
        let chunks = chunks.filter(|chunk| !chunk.is_empty());
        let mut filled = 0;
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        let from_head = count.min(self.head.len());
        self.head.advance(from_head);
        let mut left = count - from_head;
        while left > 0 {
            let part = self.parts.front_mut().expect("no more than remaining");
            if left < part.len() {
                part.advance(left);
                return;
            }
            left -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_the_head_and_all_parts_in_order_at_every_write_size() {
        let sizes = [100, 0, 16 << 10, 1, (16 << 10) + 1];
        let part = |at: usize, size: usize| Bytes::from(vec![b'a' + at as u8; size]);
        let all: Vec<u8> = std::iter::once(Bytes::from_static(b"HEAD"))
            .chain(sizes.iter().enumerate().map(|(at, size)| part(at, *size)))
            .flatten()
            .collect();
        for write_size in [1, 3, 4, 104, 16 << 10, all.len()] {
            let mut data = OutboundData::new(BytesMut::from("HEAD"));
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
}
