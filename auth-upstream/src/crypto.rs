//! Randomness, authenticated encryption and keyed hashes.
//!
//! Enters: plaintext with the context it is bound to, and key material from the configuration or
//! the database. Leaves: sealed texts, which are safe to give to a client or to store. Depends on
//! no other module of this crate.

mod key_ring;
mod keyed_hash;
pub(crate) mod random;

pub(crate) use hex::encode as hex;
use sha2::{Digest, Sha256};

pub(crate) use self::key_ring::{KeyRing, SealingKey};

/// Returns the SHA-256 digest of a text in hexadecimal.
pub(crate) fn sha256_hex(text: impl AsRef<[u8]>) -> String {
    hex(Sha256::digest(text))
}
