//! Random identifiers and secrets from the operating system's generator.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Returns random bytes.
///
/// # Panics
/// If the generator fails.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system's random generator is available");
    bytes
}

/// Returns 32 random bytes in base64url.
pub(crate) fn token() -> String {
    URL_SAFE_NO_PAD.encode(bytes::<32>())
}

/// Returns `length` characters of `A-Z a-z 0-9`.
pub(crate) fn alphanumeric(length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        text.extend(token().chars().filter(char::is_ascii_alphanumeric));
    }
    text.truncate(length);
    text
}
