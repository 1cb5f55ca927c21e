//! Randomness, authenticated encryption and keyed hashes.
//! Sealed texts are safe to give to a client or to store.

mod key_ring;
mod keyed_hash;
pub(crate) mod random;

pub(crate) use hex::encode as hex;
use sha2::{Digest, Sha256};

pub(crate) use self::key_ring::{KeyRing, SealingKey};

pub(crate) fn sha256_hex(text: impl AsRef<[u8]>) -> String {
    hex(Sha256::digest(text))
}
