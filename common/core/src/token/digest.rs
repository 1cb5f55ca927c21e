//! Keyed digests that identify tokens in the cache.

use siphasher::sip128::SipHasher24;

/// Computes token digests with a random secret of this process.
pub(super) struct TokenHasher(SipHasher24);

/// A keyed 16-byte digest that identifies a token in the cache.
///
/// SipHash-2-4 with 128 bits (Aumasson and Bernstein 2012) is a message authentication code:
/// without the secret, which is generated at startup, and without seeing a digest, which is never
/// disclosed, a token with the digest of another one is found with a probability of 2⁻¹²⁸ per
/// attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenDigest {
    high: u64,
    low: u64,
}

// === impl TokenHasher ===

impl TokenHasher {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    pub(super) fn digest(&self, token: &str) -> TokenDigest {
        let hash = self.0.hash(token.as_bytes());
        TokenDigest {
            high: hash.h1,
            low: hash.h2,
        }
    }
}

// === impl TokenDigest ===

impl TokenDigest {
    /// Returns the bits that select the cache shard.
    pub(super) fn shard_bits(self) -> usize {
        self.high as usize
    }

    /// Returns the bits that select the slot within the shard.
    pub(super) fn slot_bits(self) -> u32 {
        self.low as u32
    }
}
