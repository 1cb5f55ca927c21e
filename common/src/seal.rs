//! Sealing of what lies in the shared cache.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};

/// Seals the copy of an access token in the shared cache: it is a key to other services, and
/// whoever reads Redis, its dumps or its replication stream must not have it.
///
/// AES-256-GCM with a random nonce. The key is derived (HKDF-SHA256) from a secret that every
/// replica of the service has and the cache does not. A secret that people chose could be guessed
/// from a sealed copy; it should be generated.
pub struct Seal {
    key: RandomizedNonceKey,
    /// The cache key: a copy does not open under another name.
    name: String,
}

// === impl Seal ===

impl Seal {
    /// A seal for one purpose, which names the version of the sealed form too, under one cache key.
    ///
    /// # Panics
    /// Never: HKDF-SHA256 gives the 32 bytes that an AES-256 key has.
    #[must_use]
    pub fn new(purpose: &str, secret: &[u8], name: &str) -> Self {
        let prk = Salt::new(HKDF_SHA256, purpose.as_bytes()).extract(secret);
        let mut key = zeroize::Zeroizing::new([0; 32]);
        prk.expand(&[name.as_bytes()], HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .expect("HKDF-SHA256 gives its own 32 bytes");
        let key = RandomizedNonceKey::new(&AES_256_GCM, key.as_ref())
            .expect("32 bytes are an AES-256 key");
        Self {
            key,
            name: name.to_owned(),
        }
    }

    /// Nonce, ciphertext and tag; `None` only where the system has no randomness.
    #[must_use]
    pub fn close(&self, token: &str) -> Option<Vec<u8>> {
        let mut text = token.as_bytes().to_vec();
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(self.name.as_bytes()), &mut text)
            .ok()?;
        let mut sealed = nonce.as_ref().to_vec();
        sealed.extend_from_slice(&text);
        Some(sealed)
    }

    /// `None` if it was sealed under another secret or name, or not sealed at all.
    #[must_use]
    pub fn open(&self, sealed: &[u8]) -> Option<String> {
        let (nonce, text) = sealed.split_at_checked(aws_lc_rs::aead::NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let text = self
            .key
            .open_in_place(nonce, Aad::from(self.name.as_bytes()), &mut text)
            .ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
