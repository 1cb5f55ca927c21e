use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};

use crate::identity::{Pool, ServiceAccount};

/// Version of the sealed form; part of the key's derivation.
const PURPOSE: &[u8] = b"postern service token v1";

/// Seals the copy in the shared cache: a service token is a key to other services, and whoever reads Redis, its
/// dumps or its replication stream must not have it.
///
/// AES-256-GCM with a random nonce. The key is derived (HKDF-SHA256) from the service account's password and the
/// client's secret, which every replica of the service has and the cache does not. A password that people chose
/// could be guessed from a sealed copy; a service account's should be generated.
pub(super) struct Seal {
    key: RandomizedNonceKey,
    /// The cache key: a copy does not open under another name.
    name: String,
}

// === impl Seal ===

impl Seal {
    pub(super) fn new(pool: &Pool, account: &ServiceAccount, name: &str) -> Self {
        let password = account.password.expose();
        let secret = pool.client_secret.as_ref().map_or("", |secret| secret.expose());
        let material = zeroize::Zeroizing::new(format!("{}:{password}{secret}", password.len()));
        let prk = Salt::new(HKDF_SHA256, PURPOSE).extract(material.as_bytes());
        let mut key = zeroize::Zeroizing::new([0; 32]);
        prk.expand(&[name.as_bytes()], HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .expect("HKDF-SHA256 gives its own 32 bytes");
        let key = RandomizedNonceKey::new(&AES_256_GCM, key.as_ref()).expect("32 bytes are an AES-256 key");
        Self { key, name: name.to_owned() }
    }

    /// Nonce, ciphertext and tag.
    pub(super) fn close(&self, token: &str) -> Option<Vec<u8>> {
        let mut text = token.as_bytes().to_vec();
        let nonce = self.key.seal_in_place_append_tag(Aad::from(self.name.as_bytes()), &mut text).ok()?;
        let mut sealed = nonce.as_ref().to_vec();
        sealed.extend_from_slice(&text);
        Some(sealed)
    }

    /// `None` if it was sealed under another password, or by no one of us.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<String> {
        let (nonce, text) = sealed.split_at_checked(aws_lc_rs::aead::NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let text = self.key.open_in_place(nonce, Aad::from(self.name.as_bytes()), &mut text).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("name", &self.name).finish_non_exhaustive()
    }
}
