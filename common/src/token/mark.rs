use siphasher::sip128::SipHasher24;

/// Makes marks under a secret of its own, which never leaves the process.
pub(super) struct Marker(SipHasher24);

/// Stands for a whole token, in 16 bytes instead of its thousand.
///
/// It is SipHash-2-4 with 128 bits (Aumasson and Bernstein 2012), a message authentication code:
/// whoever does not know the secret, which is drawn at the start, and sees no mark, which is never
/// told, can choose tokens as they like and makes one that has the mark of another with a chance of
/// one in 2¹²⁸.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    high: u64,
    low: u64,
}

// === impl Marker ===

impl Marker {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    pub(super) fn mark(&self, token: &str) -> Mark {
        let hash = self.0.hash(token.as_bytes());
        Mark {
            high: hash.h1,
            low: hash.h2,
        }
    }
}

// === impl Mark ===

impl Mark {
    /// What says in which shard of a table it is.
    pub(super) fn shard_bits(self) -> u32 {
        half(self.high)
    }

    /// What says in which slot of the shard it is.
    pub(super) fn slot_bits(self) -> u32 {
        half(self.low)
    }
}

fn half(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).expect("half of 64 bits are 32")
}
