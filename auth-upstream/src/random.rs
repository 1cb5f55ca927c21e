//! The system's random source. It failing means that the system has none: nothing can go on then.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Builder;

/// Random bytes from the system.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    bytes
}

/// An opaque token: 32 bytes, two version 4 UUIDs from the system's random source (244 random
/// bits), in base64url without padding.
pub(crate) fn token() -> String {
    let half = || Builder::from_random_bytes(bytes()).into_uuid().into_bytes();
    URL_SAFE_NO_PAD.encode([half(), half()].concat())
}

/// A password that nobody knows and every pool policy takes: 32 random bytes in base64url, and one
/// of each kind of character that a policy can ask for.
pub(crate) fn password() -> String {
    format!("{}aA1!", URL_SAFE_NO_PAD.encode(bytes::<32>()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_token_is_two_random_uuids() {
        let token = URL_SAFE_NO_PAD.decode(token()).expect("base64url");
        assert_eq!(token.len(), 32);
        for half in token.chunks(16) {
            let uuid = Uuid::from_slice(half).expect("16 bytes");
            assert_eq!(uuid.get_version_num(), 4);
        }
    }
}
