//! Random identifiers and secrets from the operating system's generator.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::pool::error::ApiError;

const LETTERS_AND_DIGITS: &[u8; 62] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const LOWER_AND_DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Returns `length` characters of `A-Z a-z 0-9`.
pub(crate) fn alphanumeric(length: usize) -> Result<String, ApiError> {
    sample(LETTERS_AND_DIGITS, length)
}

/// Returns `length` characters of `a-z 0-9`, the format of Cognito's client ids and secrets.
pub(crate) fn lower_alphanumeric(length: usize) -> Result<String, ApiError> {
    sample(LOWER_AND_DIGITS, length)
}

/// Returns 32 random bytes in base64url.
pub(crate) fn token() -> Result<String, ApiError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(&error))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns the SHA-256 digest of the parts in base64url: the stored form of tokens.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The length prefix distinguishes ("ab", "c") from ("a", "bc").
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

/// Samples characters uniformly: bytes at or above the largest multiple of the alphabet's size are
/// discarded.
fn sample(alphabet: &[u8], length: usize) -> Result<String, ApiError> {
    let fair = 256 - 256 % alphabet.len();
    let mut text = String::with_capacity(length);
    let mut bytes = [0; 64];
    while text.len() < length {
        getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(&error))?;
        let usable = bytes
            .iter()
            .map(|byte| usize::from(*byte))
            .filter(|byte| *byte < fair);
        let missing_periods = length - text.len();
        text.extend(
            usable
                .take(missing_periods)
                .map(|byte| char::from(alphabet[byte % alphabet.len()])),
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_names_have_requested_length_and_alphabet() {
        let name = lower_alphanumeric(52).expect("random");
        assert_eq!(name.len(), 52);
        assert!(name.bytes().all(|byte| LOWER_AND_DIGITS.contains(&byte)));
        assert_ne!(name, lower_alphanumeric(52).expect("random"));
    }

    #[test]
    fn digest_distinguishes_part_boundaries() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
