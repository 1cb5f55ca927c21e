//! The tokens that a mail carries, made by another hand than the service's: the id's 128 bits and 100 of an HMAC-SHA256, in
//! base32.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// What a report and its mail share.
pub const DELIVERY_REPORT: &str = "postern delivery report v1\0";
/// What a click and its mail share.
pub const UNSUBSCRIBE: &str = "postern unsubscribe v1\0";

/// The token of a notification to this address.
///
/// # Panics
/// The key is not base64, or the id is none.
#[must_use]
pub fn mail_token(key: &str, purpose: &str, id: &str, address: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(key).expect("base64"));
    let id = Uuid::parse_str(id).expect("an id");
    let address = Sha256::digest(address.to_ascii_lowercase());
    let tag = hmac::sign(&key, &[purpose.as_bytes(), id.as_bytes(), &address].concat());
    let tag = u128::from_be_bytes(tag.as_ref()[..16].try_into().expect("16 bytes")) >> 28;
    let digits = |number: u128, count: usize| {
        let digit =
            move |place: usize| b"abcdefghijklmnopqrstuvwxyz234567"[(number >> (5 * place)) as usize & 31];
        (0..count).rev().map(digit).map(char::from).collect::<String>()
    };
    digits(id.as_u128(), 26) + &digits(tag, 20)
}
