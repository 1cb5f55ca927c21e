//! Keyed hashes of e-mail addresses, by which stored events are found and which reveal no address
//! without the key.

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

/// The purpose of the derived key, with the version of the hash.
const PURPOSE: &[u8] = b"postern auth audit e-mail v1";

/// HMAC-SHA-256 of an e-mail address: 32 bytes.
pub(crate) type EmailHash = Vec<u8>;

/// A key for hashes of e-mail addresses, derived with HKDF-SHA256 (RFC 5869) from a sealing key, so
/// that neither key reveals the other.
pub(crate) struct EmailHashKey(hmac::Key);

// === impl EmailHashKey ===

impl EmailHashKey {
    pub(crate) fn derive(sealing_key: &[u8; 32]) -> Self {
        let prk = Salt::new(HKDF_SHA256, PURPOSE).extract(sealing_key);
        let mut key = Zeroizing::new([0; 32]);
        prk.expand(&[], HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .expect("HKDF-SHA256 can fill 32 bytes");
        Self(hmac::Key::new(HMAC_SHA256, key.as_ref()))
    }

    /// Returns the hash of an address in lower case, because support does not know the case in
    /// which a user wrote it.
    pub(crate) fn hash(&self, email: &str) -> EmailHash {
        let text = email.to_ascii_lowercase();
        hmac::sign(&self.0, text.as_bytes()).as_ref().to_vec()
    }
}
