//! Values from the operating system's random source.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Builder;

/// Returns random bytes.
///
/// # Panics
/// If the operating system's random source fails, because no secret can be generated safely then.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has a random source");
    bytes
}

/// Returns an opaque token: two version 4 UUIDs (244 random bits in 32 bytes) in base64url without
/// padding.
pub(crate) fn token() -> String {
    let uuid = || Builder::from_random_bytes(bytes()).into_uuid().into_bytes();
    URL_SAFE_NO_PAD.encode([uuid(), uuid()].concat())
}

pub(crate) fn digits() -> String {
    // The remainder of 2^64 by 10^8 prefers no code by more than 10^-11.
    format!("{:08}", u64::from_be_bytes(bytes()) % 100_000_000)
}

/// Returns a random password that satisfies every pool policy: 32 random bytes in base64url and
/// one character of each class that a policy can require.
pub(crate) fn password() -> String {
    format!("{}aA1!", URL_SAFE_NO_PAD.encode(bytes::<32>()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn token_consists_of_two_random_uuids() {
        let token = URL_SAFE_NO_PAD.decode(token()).expect("base64url");
        assert_eq!(token.len(), 32);
        for half in token.chunks(16) {
            let uuid = Uuid::from_slice(half).expect("16 bytes");
            assert_eq!(uuid.get_version_num(), 4);
        }
    }
}
