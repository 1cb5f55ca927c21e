//! Authenticated encryption with AES-256-GCM.

use std::collections::BTreeSet;

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Length of a nonce in bytes.
pub const NONCE_BYTES: usize = 12;

/// An AES-256-GCM key.
pub struct Cipher(Aes256Gcm);

/// Encrypts what travels through somebody else, for one name.
///
/// The key is derived with HKDF-SHA256 from a secret that every replica of the service has. The
/// secret should be generated: a sealed value allows offline guessing of a weak one.
#[derive(Debug)]
pub struct Seal {
    cipher: Cipher,
    /// Used as additional data: a value does not decrypt under another name.
    name: String,
}

/// The reason for which a text is not accepted as a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// The text is no Base64.
    #[error("is not Base64")]
    NotBase64,
    /// The key has another number of bytes.
    #[error("must be 32 bytes in Base64, not {0}; make one with `openssl rand -base64 32`")]
    Length(usize),
    /// The key is evidently not random.
    #[error("is a sample or was typed by hand; make one with `openssl rand -base64 32`")]
    NotRandom,
}

/// Parses a key of 32 bytes from Base64 in either alphabet.
pub fn parse_key(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyTextError> {
    let text = text.trim();
    let decoded = STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text));
    let decoded = decoded.or_else(|_| URL_SAFE_NO_PAD.decode(text));
    let decoded = Zeroizing::new(decoded.map_err(|_| KeyTextError::NotBase64)?);
    let length = |_| KeyTextError::Length(decoded.len());
    let bytes: &[u8; 32] = decoded.as_slice().try_into().map_err(length)?;
    if !looks_random(bytes) {
        return Err(KeyTextError::NotRandom);
    }
    Ok(Zeroizing::new(*bytes))
}

/// Returns whether the bytes are plausibly random: at least 20 distinct values, no arithmetic
/// sequence, not only printable ASCII. 32 random bytes have 30 distinct values on average; fewer
/// than 20 occur with a probability below 10^-12, only printable bytes with about 10^-13.
fn looks_random(bytes: &[u8; 32]) -> bool {
    let distinct = bytes.iter().collect::<BTreeSet<_>>().len();
    let step = bytes[1].wrapping_sub(bytes[0]);
    let mut pairs = bytes.windows(2);
    let is_sequence = pairs.all(|pair| pair[1].wrapping_sub(pair[0]) == step);
    let is_printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    distinct >= 20 && !is_sequence && !is_printable
}

// === impl Cipher ===

impl Cipher {
    /// Creates a cipher from a key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    /// Encrypts with a random nonce. Returns nonce, ciphertext and tag.
    ///
    /// # Panics
    /// If the operating system's random source fails, because no nonce can be generated safely then.
    #[must_use]
    pub fn seal(&self, additional_data: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).expect("the operating system has a random source");
        let payload = Payload {
            msg: plain,
            aad: additional_data,
        };
        let sealed = self.0.encrypt(&Nonce::from(nonce), payload);
        let sealed = sealed.expect("AES-GCM encrypts up to 64 GiB");
        [&nonce, &*sealed].concat()
    }

    /// Decrypts ciphertext and tag. Returns `None` unless they were sealed with this key, nonce and
    /// additional data.
    #[must_use]
    pub fn open(
        &self,
        additional_data: &[u8],
        nonce: &[u8; NONCE_BYTES],
        sealed: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let payload = Payload {
            msg: sealed,
            aad: additional_data,
        };
        let plain = self.0.decrypt(&Nonce::from(*nonce), payload).ok()?;
        Some(Zeroizing::new(plain))
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[Cipher]")
    }
}

// === impl Seal ===

impl Seal {
    /// Derives the key for one purpose and one cache key. `purpose` includes the version of the
    /// sealed format.
    #[must_use]
    pub fn new(purpose: &str, secret: &[u8], name: &str) -> Self {
        let prk = Salt::new(HKDF_SHA256, purpose.as_bytes()).extract(secret);
        let mut key = Zeroizing::new([0; 32]);
        prk.expand(&[name.as_bytes()], HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .expect("HKDF-SHA256 can fill 32 bytes");
        Self {
            cipher: Cipher::new(&key),
            name: name.to_owned(),
        }
    }

    /// Encrypts `token` as [`Cipher::seal`] does.
    #[must_use]
    pub fn close(&self, token: &str) -> Vec<u8> {
        self.cipher.seal(self.name.as_bytes(), token.as_bytes())
    }

    /// Decrypts a sealed value. Returns `None` if it was sealed with another secret or cache key,
    /// or was modified.
    #[must_use]
    pub fn open(&self, sealed: &[u8]) -> Option<String> {
        let (nonce, sealed) = sealed.split_first_chunk()?;
        let plain = self.cipher.open(self.name.as_bytes(), nonce, sealed)?;
        std::str::from_utf8(&plain).ok().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_copy_opens_with_its_secret_and_name_only() {
        let seal = |secret: &str, name: &str| Seal::new("test v1", secret.as_bytes(), name);
        let sealed = seal("secret", "key").close("token");
        assert_eq!(sealed.len(), NONCE_BYTES + "token".len() + 16);
        for (secret, name, sealed, opened) in [
            ("secret", "key", &sealed[..], Some("token")),
            ("other", "key", &sealed, None),
            ("secret", "other", &sealed, None),
            ("secret", "key", &sealed[1..], None),
            ("secret", "key", &sealed[..4], None),
        ] {
            assert_eq!(seal(secret, name).open(sealed).as_deref(), opened);
        }
        assert_ne!(seal("secret", "key").close("token"), sealed, "a new nonce");
    }

    #[test]
    fn cipher_agrees_with_wycheproof_vectors() {
        let path = crate::testing::vectors("wycheproof/aes_gcm_test.json");
        let text = std::fs::read(path).expect("a readable file");
        let file: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let is_supported = |group: &&serde_json::Value| {
            (&group["keySize"], &group["ivSize"]) == (&256.into(), &96.into())
        };
        let groups = file["testGroups"].as_array().expect("a list").iter();
        let groups = groups.filter(is_supported);
        let tests = groups.flat_map(|group| group["tests"].as_array().expect("a list"));
        let tests: Vec<_> = tests.collect();
        assert!(tests.len() > 60, "{} vectors", tests.len());
        for test in tests {
            let field = |name: &str| hex::decode(test[name].as_str().expect("text")).expect("hex");
            let key: [u8; 32] = field("key").try_into().expect("32 bytes");
            let nonce: [u8; NONCE_BYTES] = field("iv").try_into().expect("12 bytes");
            let (aad, sealed) = (field("aad"), [field("ct"), field("tag")].concat());
            let opened = Cipher::new(&key).open(&aad, &nonce, &sealed);
            let expected = (test["result"] == "valid").then(|| field("msg"));
            let opened = opened.map(|plain| plain.to_vec());
            assert_eq!(opened, expected, "{}", test["tcId"]);
        }
    }

    #[test]
    fn malformed_short_and_sample_keys_are_rejected() {
        let error = |text: &str| parse_key(text).expect_err("rejected");
        assert_eq!(error("not base64!"), KeyTextError::NotBase64);
        assert_eq!(error(&STANDARD.encode([7; 16])), KeyTextError::Length(16));
        let sequence: Vec<u8> = (0..32).collect();
        for key in [&[0; 32][..], &sequence, b"0123456789abcdefghijklmnopqrstuv"] {
            assert_eq!(error(&STANDARD.encode(key)), KeyTextError::NotRandom);
        }
        let random: [u8; 32] = *b"\x9a\x11\xe2\x43\x74\xb5\x06\xd7\x28\xf9\x5a\x8b\xcc\x1d\xee\x3f\x60\x95\xa1\xc2\x03\x14\x77\xf8\x89\xda\x4b\x2c\xbd\x6e\x0f\x91";
        assert!(parse_key(&STANDARD.encode(random)).is_ok());
        assert!(parse_key(&URL_SAFE_NO_PAD.encode(random)).is_ok());
    }
}
