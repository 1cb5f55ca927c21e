//! Keyed tokens in outgoing e-mail: in the unsubscribe link, and in the envelope's return path
//! (VERP).
//!
//! A notification's identifier is not secret, because its creator knows it. A valid token proves
//! that this service sent the message, for this notification, to this address, and for this
//! purpose. Requests without one are rejected.

use std::sync::Arc;

use aws_lc_rs::{constant_time, hmac};
use uuid::Uuid;

use crate::address::{AddressHash, base64_bytes};
use crate::notification::NotificationId;

/// Environment variable with the keys.
pub(crate) const KEY_VARIABLE: &str = "NOTIFY_TOKEN_KEY";

/// Issues and verifies tokens. The first key issues; all keys verify, so that keys can be rotated.
#[derive(Clone, Debug)]
pub(crate) struct MailTokens(Arc<[hmac::Key]>);

/// The use that a token is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenPurpose {
    /// Unsubscribing the address.
    Unsubscribe,
    /// Reporting the delivery result.
    DeliveryReport,
}

/// A token that has been parsed and not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenClaim {
    pub(crate) id: NotificationId,
    tag: u128,
}

/// Length of a token in base32 digits: the identifier's 128 bits, 40 bits of an HMAC over the
/// identifier, and 60 bits of an HMAC over identifier and address. The first HMAC shows without the
/// address, which is in the store, that this service issued the token. Mail servers may change the
/// case of a local part, which is limited to 64 octets (RFC 5321 section 4.5.3.1.1).
pub(crate) const TOKEN_LENGTH: usize = ID_DIGITS + TAG_DIGITS;
const ID_DIGITS: usize = 26;
const TAG_DIGITS: usize = 20;
const ADDRESS_TAG_BITS: u32 = 60;
const ID_TAG_BITS: u32 = 40;
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const MIN_KEY_BYTES: usize = 32;

// === impl MailTokens ===

impl MailTokens {
    /// Parses the keys: base64 of at least 32 bytes each, separated by commas.
    ///
    /// # Errors
    /// A description of the error that does not contain the keys.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let key = |text: &str| {
            let bytes = base64_bytes(text.trim()).filter(|bytes| bytes.len() >= MIN_KEY_BYTES);
            bytes.map(|bytes| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let keys: Option<Vec<_>> = text.split(',').map(key).collect();
        let expected =
            "must be base64 of at least 32 bytes, or several of these with commas between";
        Ok(Self(keys.ok_or(expected)?.into()))
    }

    /// Returns the token of a notification sent to `address`.
    pub(crate) fn issue(
        &self,
        purpose: TokenPurpose,
        id: NotificationId,
        address: &AddressHash,
    ) -> String {
        let first = self.0.first();
        let tag = first.map_or(0, |key| tag(key, purpose, id, address));
        let mut token = String::with_capacity(TOKEN_LENGTH);
        write_digits(&mut token, id.0.as_u128(), ID_DIGITS);
        write_digits(&mut token, tag, TAG_DIGITS);
        token
    }

    /// Returns whether this service issued a token of this notification and purpose, for any
    /// address.
    pub(crate) fn has_issued(&self, purpose: TokenPurpose, claim: TokenClaim) -> bool {
        let id_tag = (claim.tag >> ADDRESS_TAG_BITS).to_be_bytes();
        self.0.iter().any(|key| {
            let expected = hmac_bits(key, purpose, &[claim.id.0.as_bytes()], ID_TAG_BITS);
            let expected = expected.to_be_bytes();
            constant_time::verify_slices_are_equal(&expected, &id_tag).is_ok()
        })
    }

    /// Returns whether this service issued the token for this purpose and address.
    #[must_use]
    pub(crate) fn verify(
        &self,
        purpose: TokenPurpose,
        claim: TokenClaim,
        address: &AddressHash,
    ) -> bool {
        self.0.iter().any(|key| {
            let expected = tag(key, purpose, claim.id, address).to_be_bytes();
            constant_time::verify_slices_are_equal(&expected, &claim.tag.to_be_bytes()).is_ok()
        })
    }
}

fn tag(key: &hmac::Key, purpose: TokenPurpose, id: NotificationId, address: &AddressHash) -> u128 {
    let id = id.0.as_bytes();
    let id_tag = hmac_bits(key, purpose, &[id], ID_TAG_BITS);
    (id_tag << ADDRESS_TAG_BITS) | hmac_bits(key, purpose, &[id, address], ADDRESS_TAG_BITS)
}

/// Returns the first `bits` bits of an HMAC over the purpose and `parts`, which have fixed lengths.
fn hmac_bits(key: &hmac::Key, purpose: TokenPurpose, parts: &[&[u8]], bits: u32) -> u128 {
    let mut context = hmac::Context::with_key(key);
    context.update(match purpose {
        TokenPurpose::Unsubscribe => b"postern unsubscribe v2\0",
        TokenPurpose::DeliveryReport => b"postern delivery report v2\0",
    });
    for part in parts {
        context.update(part);
    }
    let tag = context.sign();
    let half = tag.as_ref().first_chunk();
    half.map_or(0, |half| u128::from_be_bytes(*half) >> (u128::BITS - bits))
}

// === impl TokenClaim ===

impl TokenClaim {
    /// Parses a token, case-insensitively.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts = text.split_at_checked(ID_DIGITS);
        let (id, tag) = parts.filter(|(_, tag)| tag.len() == TAG_DIGITS)?;
        let id = NotificationId(Uuid::from_u128(read_digits(id)?));
        let tag = read_digits(tag)?;
        Some(Self { id, tag })
    }

    /// Parses the token after the `+` in the local part of an address.
    pub(crate) fn from_return_path(address: &str) -> Option<Self> {
        let (local, _domain) = address.trim().trim_matches(['<', '>']).rsplit_once('@')?;
        Self::parse(local.rsplit_once('+')?.1)
    }
}

fn write_digits(text: &mut String, number: u128, digits: usize) {
    for place in (0..digits).rev() {
        let digit = (number >> (5 * place)) & 31;
        text.push(char::from(DIGITS[usize::try_from(digit).unwrap_or(0)]));
    }
}

fn read_digits(text: &str) -> Option<u128> {
    text.bytes().try_fold(0_u128, |number, byte| {
        let byte = byte.to_ascii_lowercase();
        let digit = DIGITS.iter().position(|known| *known == byte)?;
        let digit = u128::try_from(digit).ok()?;
        number.checked_mul(32)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    use super::*;
    use crate::address::hash;
    use crate::notification::OrderSequence;

    fn tokens(seed: u8) -> MailTokens {
        MailTokens::parse(&STANDARD.encode([seed; 32])).expect("a key")
    }

    #[test]
    fn token_is_valid_for_its_purpose_notification_and_address() {
        let (tokens, other) = (tokens(1), tokens(2));
        let (id, ada) = (OrderSequence::id(1 << 40), hash("ada@example.com"));
        let token = tokens.issue(TokenPurpose::Unsubscribe, id, &ada);
        assert_eq!(token.len(), TOKEN_LENGTH);
        for spelling in [token.clone(), token.to_uppercase()] {
            let claim = TokenClaim::parse(&spelling).expect("a token");
            assert_eq!(claim.id, id);
            assert!(tokens.verify(TokenPurpose::Unsubscribe, claim, &ada));
            assert!(tokens.has_issued(TokenPurpose::Unsubscribe, claim));
            assert!(!tokens.has_issued(TokenPurpose::DeliveryReport, claim));
            assert!(!other.has_issued(TokenPurpose::Unsubscribe, claim));
            assert!(!tokens.verify(TokenPurpose::DeliveryReport, claim, &ada));
            assert!(!tokens.verify(TokenPurpose::Unsubscribe, claim, &hash("bob@example.com")));
            assert!(!other.verify(TokenPurpose::Unsubscribe, claim, &ada));
            let another = TokenClaim {
                id: OrderSequence::id(2 << 40),
                ..claim
            };
            assert!(!tokens.verify(TokenPurpose::Unsubscribe, another, &ada));
            assert!(!tokens.has_issued(TokenPurpose::Unsubscribe, another));
        }
        let address = format!("bounces+{token}@example.org");
        let claim = TokenClaim::from_return_path(&format!("<{address}>"));
        assert_eq!(claim, TokenClaim::parse(&token));
    }

    #[test]
    fn malformed_token_is_rejected() {
        let (id, ada) = (OrderSequence::id(1 << 40), hash("a@example.com"));
        let token = tokens(1).issue(TokenPurpose::Unsubscribe, id, &ada);
        let (long, other) = (format!("{token}a"), token.replace(&token[..1], "1"));
        // Identifiers have 128 bits.
        let large = "7".repeat(TOKEN_LENGTH);
        for wrong in ["", "a", &token[1..], &long, &other, "é", &large] {
            assert_eq!(TokenClaim::parse(wrong), None, "{wrong}");
        }
        assert_eq!(TokenClaim::from_return_path("bounces@example.org"), None);
        assert_eq!(TokenClaim::from_return_path(&token), None);
    }

    #[test]
    fn keys_can_be_rotated_and_weak_keys_are_rejected() {
        let (old, new) = (STANDARD.encode([1; 32]), URL_SAFE_NO_PAD.encode([255; 40]));
        let both = MailTokens::parse(&format!("{new},{old}")).expect("two keys");
        let (id, ada) = (OrderSequence::id(1 << 40), hash("ada@example.com"));
        let token = tokens(1).issue(TokenPurpose::DeliveryReport, id, &ada);
        let claim = TokenClaim::parse(&token).expect("a token");
        assert!(both.verify(TokenPurpose::DeliveryReport, claim, &ada));
        assert_ne!(both.issue(TokenPurpose::DeliveryReport, id, &ada), token);
        for weak in ["", "secret", &STANDARD.encode([1; 31]), &format!("{old},")] {
            assert!(MailTokens::parse(weak).is_err(), "{weak}");
        }
    }
}
