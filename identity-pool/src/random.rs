//! Names and secrets from the system's random source.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::fault::Fault;

const LETTERS_AND_DIGITS: &[u8; 62] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const LOWER_AND_DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// `length` characters of `A-Z a-z 0-9`.
pub(crate) fn alphanumeric(length: usize) -> Result<String, Fault> {
    choose(LETTERS_AND_DIGITS, length)
}

/// `length` characters of `a-z 0-9`, the form of Cognito's client ids and secrets.
pub(crate) fn lowercase(length: usize) -> Result<String, Fault> {
    choose(LOWER_AND_DIGITS, length)
}

/// A decimal code of six digits.
pub(crate) fn digits() -> Result<String, Fault> {
    choose(b"0123456789", 6)
}

/// 32 random bytes, base64url.
pub(crate) fn token() -> Result<String, Fault> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Fault::internal(&error))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// SHA-256, base64url: what is kept of a token.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

/// Every character is equally likely: bytes beyond the last whole multiple are thrown away.
fn choose(alphabet: &[u8], length: usize) -> Result<String, Fault> {
    let fair = 256 - 256 % alphabet.len();
    let mut text = String::with_capacity(length);
    let mut bytes = [0; 64];
    while text.len() < length {
        getrandom::fill(&mut bytes).map_err(|error| Fault::internal(&error))?;
        let usable = bytes
            .iter()
            .map(|byte| usize::from(*byte))
            .filter(|byte| *byte < fair);
        let wanted = length - text.len();
        text.extend(
            usable
                .take(wanted)
                .map(|byte| char::from(alphabet[byte % alphabet.len()])),
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_asked_length_and_alphabet() {
        let name = lowercase(52).expect("random");
        assert_eq!(name.len(), 52);
        assert!(name.bytes().all(|byte| LOWER_AND_DIGITS.contains(&byte)));
        assert_ne!(name, lowercase(52).expect("random"));
        assert!(digits().expect("random").parse::<u32>().expect("digits") < 1_000_000);
    }

    #[test]
    fn a_digest_keeps_its_parts_apart() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
