//! Encryption of values that are stored in the shared cache.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};

/// Encrypts the copy of an access token in the shared cache, so that read access to Redis, its
/// dumps or its replication stream does not expose it.
///
/// Uses AES-256-GCM with a random nonce. The key is derived with HKDF-SHA256 from a secret that
/// every replica of the service has and the cache does not. The secret should be generated: a
/// sealed copy allows offline guessing of a weak one.
pub struct Seal {
    key: RandomizedNonceKey,
    /// The cache key, used as additional data: a value does not decrypt under another key.
    name: String,
}

// === impl Seal ===

impl Seal {
    /// Derives the key for one purpose and one cache key. `purpose` includes the version of the
    /// sealed format.
    ///
    /// # Panics
    /// Never: HKDF-SHA256 yields the 32 bytes of an AES-256 key.
    #[must_use]
    pub fn new(purpose: &str, secret: &[u8], name: &str) -> Self {
        let prk = Salt::new(HKDF_SHA256, purpose.as_bytes()).extract(secret);
        let mut key = zeroize::Zeroizing::new([0; 32]);
        prk.expand(&[name.as_bytes()], HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .expect("HKDF-SHA256 can fill 32 bytes");
        let key = RandomizedNonceKey::new(&AES_256_GCM, key.as_ref())
            .expect("an AES-256 key has 32 bytes");
        Self {
            key,
            name: name.to_owned(),
        }
    }

    /// Encrypts `token` and returns nonce, ciphertext and tag. Returns `None` only if the system
    /// has no random bytes.
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

    /// Decrypts a sealed value. Returns `None` if it was sealed with another secret or cache key,
    /// or was modified.
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
