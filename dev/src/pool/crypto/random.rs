//! Random identifiers and secrets from the operating system's generator.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::pool::error::{ApiError, ApiResult};

/// Returns `length` characters of `A-Z a-z 0-9`.
pub(crate) fn alphanumeric(length: usize) -> ApiResult<String> {
    let mut text = String::new();
    while text.len() < length {
        text.extend(token()?.chars().filter(char::is_ascii_alphanumeric));
    }
    text.truncate(length);
    Ok(text)
}

/// Returns 32 random bytes in base64url.
pub(crate) fn token() -> ApiResult<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_distinguishes_part_boundaries() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
