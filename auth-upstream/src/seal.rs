//! Sealing: AES-256-GCM with a ring of keys, so that a key can be replaced without losing what it
//! sealed.
//!
//! The text form is `v1.kid.nonce.ciphertext`, each part base64url without padding except the key
//! id, which is the first eight hexadecimal digits of the key's SHA-256. The associated data binds
//! the version, the key id and whatever the caller names, so that a sealed text opens only where it
//! belongs.

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::random;

const VERSION: &str = "v1";
const NONCE_BYTES: usize = 12;

/// Keys by id; the first one seals, every one opens.
pub(crate) struct KeyRing {
    first: Key,
    older: Vec<Key>,
}

/// One AES-256 key.
pub(crate) struct Key {
    id: String,
    cipher: Aes256Gcm,
}

/// Why a text is no key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("is not Base64")]
    NotBase64,
    #[error("must be 32 bytes in Base64, not {0}; make one with `openssl rand -base64 32`")]
    Length(usize),
    #[error("is a sample or was typed by hand; make one with `openssl rand -base64 32`")]
    NotRandom,
}

// === impl Key ===

impl Key {
    /// From 32 bytes.
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        let id = hex(&Sha256::digest(bytes)[..4]);
        Self {
            id,
            cipher: Aes256Gcm::new(bytes.into()),
        }
    }

    /// From Base64 in either alphabet; a short key, or one that no random source made, is refused.
    pub(crate) fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let decoded = STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text));
        let decoded = decoded
            .or_else(|_| URL_SAFE_NO_PAD.decode(text))
            .map_err(|_| KeyError::NotBase64)?;
        let decoded = Zeroizing::new(decoded);
        let bytes: &[u8; 32] = decoded
            .as_slice()
            .try_into()
            .map_err(|_| KeyError::Length(decoded.len()))?;
        if looks_random(bytes) {
            Ok(Self::new(bytes))
        } else {
            Err(KeyError::NotRandom)
        }
    }

    fn seal(&self, context: &[&str], plain: &[u8]) -> String {
        let nonce: [u8; NONCE_BYTES] = random::bytes();
        let aad = associated_data(&self.id, context);
        let sealed = self
            .cipher
            .encrypt(
                &Nonce::from(nonce),
                Payload {
                    msg: plain,
                    aad: &aad,
                },
            )
            .expect("a text far below 64 GiB always seals");
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
        let plain = self
            .cipher
            .decrypt(
                &Nonce::from(nonce),
                Payload {
                    msg: &sealed,
                    aad: &aad,
                },
            )
            .ok()?;
        Some(Zeroizing::new(plain))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

// === impl KeyRing ===

impl KeyRing {
    pub(crate) fn new(first: Key, older: Vec<Key>) -> Self {
        Self { first, older }
    }

    /// Seals under the newest key. `context` is not in the text and must be given again to open it.
    pub(crate) fn seal(&self, context: &[&str], plain: &[u8]) -> String {
        self.first.seal(context, plain)
    }

    /// How every text begins that the newest key sealed.
    pub(crate) fn newest(&self) -> String {
        format!("{VERSION}.{}.", self.first.id)
    }

    /// `None` for whatever was not sealed here, with this context, under one of the keys.
    pub(crate) fn open(&self, context: &[&str], text: &str) -> Option<Zeroizing<Vec<u8>>> {
        let mut parts = text.split('.');
        let (version, id, nonce, sealed) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version != VERSION || parts.next().is_some() {
            return None;
        }
        let key = std::iter::once(&self.first)
            .chain(&self.older)
            .find(|key| key.id == id)?;
        key.open(context, nonce, sealed)
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entry(&self.first)
            .entries(&self.older)
            .finish()
    }
}

/// Each part with its length before it, so that no two contexts read the same.
fn associated_data(key_id: &str, context: &[&str]) -> Vec<u8> {
    let mut data = Vec::with_capacity(64);
    for part in [VERSION, key_id].iter().chain(context) {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

/// Whether a random source could have made it. 32 random bytes hold 30 different values on average,
/// fewer than 20 in less than one of 10^12; all of them printable in one of 10^13.
fn looks_random(bytes: &[u8; 32]) -> bool {
    let mut seen = [false; 256];
    for byte in bytes {
        seen[usize::from(*byte)] = true;
    }
    let different = seen.iter().filter(|seen| **seen).count();
    let step = bytes[1].wrapping_sub(bytes[0]);
    let is_sequence = bytes
        .windows(2)
        .all(|pair| pair[1].wrapping_sub(pair[0]) == step);
    let is_typed = bytes
        .iter()
        .all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    different >= 20 && !is_sequence && !is_typed
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
            text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(&random::bytes())
    }

    #[test]
    fn a_sealed_text_opens_only_with_its_key_and_its_context() {
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
    fn a_ring_opens_what_an_older_key_sealed() {
        let bytes: [u8; 32] = random::bytes();
        let old = KeyRing::new(Key::new(&bytes), Vec::new()).seal(&[], b"x");
        let ring = KeyRing::new(key(), vec![Key::new(&bytes)]);
        assert!(ring.open(&[], &old).is_some());
        assert_ne!(
            ring.seal(&[], b"x").split('.').nth(1),
            old.split('.').nth(1)
        );
    }

    #[test]
    fn the_cipher_does_what_the_published_vectors_say() {
        let bytes = |text: &str| -> Vec<u8> {
            let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
            (0..text.len()).step_by(2).map(digit).collect()
        };
        let path = postern_common::testing::vectors("wycheproof/aes_gcm_test.json");
        let text = std::fs::read(path).expect("a readable file");
        let file: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let ours = |group: &&serde_json::Value| {
            (&group["keySize"], &group["ivSize"]) == (&256.into(), &96.into())
        };
        let groups = file["testGroups"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(ours);
        let tests: Vec<_> = groups
            .flat_map(|group| group["tests"].as_array().expect("a list"))
            .collect();
        assert!(tests.len() > 60, "{} vectors", tests.len());
        for test in tests {
            let field = |name: &str| bytes(test[name].as_str().expect("text"));
            let key: [u8; 32] = field("key").try_into().expect("32 bytes");
            let nonce: [u8; NONCE_BYTES] = field("iv").try_into().expect("12 bytes");
            let (aad, sealed) = (field("aad"), [field("ct"), field("tag")].concat());
            let opened = Key::new(&key).cipher.decrypt(
                &nonce.into(),
                Payload {
                    msg: &sealed,
                    aad: &aad,
                },
            );
            let expected = (test["result"] == "valid").then(|| field("msg"));
            assert_eq!(opened.ok(), expected, "{}", test["tcId"]);
        }
    }

    #[test]
    fn a_bad_short_or_sample_key_is_refused() {
        let refusal = |text: &str| Key::parse(text).expect_err("refused");
        assert_eq!(refusal("not base64!"), KeyError::NotBase64);
        assert_eq!(refusal(&STANDARD.encode([7; 16])), KeyError::Length(16));
        assert_eq!(refusal(&STANDARD.encode([0; 32])), KeyError::NotRandom);
        assert_eq!(
            refusal(&STANDARD.encode(b"0123456789abcdefghijklmnopqrstuv")),
            KeyError::NotRandom
        );
        let sequence: Vec<u8> = (0..32).collect();
        assert_eq!(refusal(&STANDARD.encode(sequence)), KeyError::NotRandom);
        let random: [u8; 32] = random::bytes();
        assert!(Key::parse(&STANDARD.encode(random)).is_ok());
        assert!(Key::parse(&URL_SAFE_NO_PAD.encode(random)).is_ok());
    }
}
