//! Sealing: AES-256-GCM with a ring of keys, so that keys can be rotated.
//!
//! A sealed text is `v1.kid.nonce.ciphertext`. The key id is the first eight hexadecimal digits of
//! the key's SHA-256; nonce and ciphertext are base64url without padding. The associated data
//! contains the version, the key id and the caller's context, so that a sealed text opens only in
//! the context for which it was sealed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::seal::{Cipher, KeyTextError, NONCE_BYTES, parse_key};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::hex;
use super::keyed_hash::{EmailHash, EmailHashKey};

const VERSION: &str = "v1";

/// Sealing keys, newest first. The newest seals; all open.
pub(crate) struct KeyRing {
    newest: SealingKey,
    older: Vec<SealingKey>,
}

/// An AES-256 key and its id.
pub(crate) struct SealingKey {
    id: String,
    cipher: Cipher,
    email_hash: EmailHashKey,
}

// === impl SealingKey ===

impl SealingKey {
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        let id = hex(&Sha256::digest(bytes)[..4]);
        Self {
            id,
            cipher: Cipher::new(bytes),
            email_hash: EmailHashKey::derive(bytes),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, KeyTextError> {
        Ok(Self::new(&*parse_key(text)?))
    }

    fn seal(&self, context: &[&str], plain: &[u8]) -> String {
        let aad = associated_data(&self.id, context);
        let sealed = self.cipher.seal(&aad, plain);
        let (nonce, sealed) = sealed.split_at(NONCE_BYTES);
        format!(
            "{VERSION}.{}.{}.{}",
            self.id,
            URL_SAFE_NO_PAD.encode(nonce),
            URL_SAFE_NO_PAD.encode(sealed)
        )
    }

    fn open(&self, context: &[&str], nonce: &str, sealed: &str) -> Option<Zeroizing<Vec<u8>>> {
        let nonce: [u8; NONCE_BYTES] = URL_SAFE_NO_PAD.decode(nonce).ok()?.try_into().ok()?;
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let aad = associated_data(&self.id, context);
        self.cipher.open(&aad, &nonce, &sealed)
    }
}

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealingKey({})", self.id)
    }
}

// === impl KeyRing ===

impl KeyRing {
    pub(crate) fn new(newest: SealingKey, older: Vec<SealingKey>) -> Self {
        Self { newest, older }
    }

    /// Seals with the newest key. `context` is authenticated but not part of the text: opening
    /// needs the same context.
    pub(crate) fn seal(&self, context: &[&str], plain: &[u8]) -> String {
        self.newest.seal(context, plain)
    }

    pub(crate) fn seal_json(&self, context: &[&str], value: &impl Serialize) -> String {
        let plain = serde_json::to_vec(value).expect("the value serializes to JSON");
        self.seal(context, &plain)
    }

    pub(crate) fn open_json<T: DeserializeOwned>(&self, context: &[&str], text: &str) -> Option<T> {
        serde_json::from_slice(&self.open(context, text)?).ok()
    }

    /// Returns the keyed hash of an address with the newest key.
    pub(crate) fn email_hash(&self, email: &str) -> EmailHash {
        self.newest.email_hash.hash(email)
    }

    /// Returns the keyed hashes of an address with all keys, newest first: events that were stored
    /// before a rotation have the hash of an older key.
    pub(crate) fn email_hashes(&self, email: &str) -> Vec<EmailHash> {
        std::iter::once(&self.newest)
            .chain(&self.older)
            .map(|key| key.email_hash.hash(email))
            .collect()
    }

    /// Opens a text. Returns `None` unless it was sealed with one of the keys and this context.
    pub(crate) fn open(&self, context: &[&str], text: &str) -> Option<Zeroizing<Vec<u8>>> {
        let mut parts = text.split('.');
        let (version, id, nonce, sealed) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version != VERSION || parts.next().is_some() {
            return None;
        }
        let key = std::iter::once(&self.newest)
            .chain(&self.older)
            .find(|key| key.id == id)?;
        key.open(context, nonce, sealed)
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entry(&self.newest)
            .entries(&self.older)
            .finish()
    }
}

/// Encodes each part with its length before it, so that different contexts never encode alike.
fn associated_data(key_id: &str, context: &[&str]) -> Vec<u8> {
    let mut data = Vec::with_capacity(64);
    for part in [VERSION, key_id].iter().chain(context) {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random;

    fn key() -> SealingKey {
        SealingKey::new(&random::bytes())
    }

    #[test]
    fn sealed_text_opens_only_with_its_key_and_context() {
        let ring = KeyRing::new(key(), Vec::new());
        let text = ring.seal(&["google", "subject-1"], b"refresh");
        assert_eq!(text.split('.').count(), 4);
        let open = |ring: &KeyRing, context: &[&str], text: &str| {
            ring.open(context, text).map(|p| p.to_vec())
        };
        assert_eq!(
            open(&ring, &["google", "subject-1"], &text).as_deref(),
            Some(&b"refresh"[..])
        );
        assert_eq!(open(&ring, &["google", "subject-2"], &text), None);
        assert_eq!(open(&ring, &["googlesubject", "-1"], &text), None);
        assert_eq!(
            open(
                &KeyRing::new(key(), Vec::new()),
                &["google", "subject-1"],
                &text
            ),
            None
        );
        let mut broken = text.into_bytes();
        let last = broken.len() - 3;
        broken[last] = if broken[last] == b'A' { b'B' } else { b'A' };
        let broken = String::from_utf8(broken).expect("ASCII");
        assert_eq!(open(&ring, &["google", "subject-1"], &broken), None);
    }

    #[test]
    fn text_sealed_with_an_older_key_opens() {
        let bytes: [u8; 32] = random::bytes();
        let old = KeyRing::new(SealingKey::new(&bytes), Vec::new()).seal(&[], b"x");
        let ring = KeyRing::new(key(), vec![SealingKey::new(&bytes)]);
        assert!(ring.open(&[], &old).is_some());
        assert_ne!(
            ring.seal(&[], b"x").split('.').nth(1),
            old.split('.').nth(1)
        );
    }

    #[test]
    fn email_hash_depends_on_the_key_and_not_on_case() {
        let (old, bytes): (_, [u8; 32]) = (random::bytes(), random::bytes());
        let before = KeyRing::new(SealingKey::new(&old), Vec::new());
        let ring = KeyRing::new(SealingKey::new(&bytes), vec![SealingKey::new(&old)]);
        let ada = "Ada@Example.com";
        assert_ne!(ring.email_hash(ada), before.email_hash(ada));
        assert_eq!(ring.email_hash(ada), ring.email_hash("ada@example.com"));
        assert_ne!(ring.email_hash(ada), ring.email_hash("eda@example.com"));
        let expected = [ring.email_hash(ada), before.email_hash(ada)];
        assert_eq!(ring.email_hashes(ada), expected);
    }
}
