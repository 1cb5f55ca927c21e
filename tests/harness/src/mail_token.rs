//! An independent implementation of the tokens in mails: the id's 128 bits, 40 bits of an
//! HMAC-SHA256 over the id, and 60 bits of one over id and address, in base32.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Purpose of tokens in delivery reports.
pub const DELIVERY_REPORT: &str = "postern delivery report v2\0";
/// Purpose of tokens in unsubscribe links.
pub const UNSUBSCRIBE: &str = "postern unsubscribe v2\0";

/// Returns the token of a notification to an address.
pub fn mail_token(key: &str, purpose: &str, id: &str, address: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(key).expect("base64"));
    let id = Uuid::parse_str(id).expect("an id");
    let address = Sha256::digest(address.to_ascii_lowercase());
    let bits = |parts: &[&[u8]], bits: u32| {
        let tag = hmac::sign(&key, &[&[purpose.as_bytes()], parts].concat().concat());
        u128::from_be_bytes(tag.as_ref()[..16].try_into().expect("16 bytes")) >> (128 - bits)
    };
    let tag = (bits(&[id.as_bytes()], 40) << 60) | bits(&[id.as_bytes(), &address], 60);
    let digits = |number: u128, count: usize| {
        let digit = move |place: usize| {
            b"abcdefghijklmnopqrstuvwxyz234567"[(number >> (5 * place)) as usize & 31]
        };
        (0..count)
            .rev()
            .map(digit)
            .map(char::from)
            .collect::<String>()
    };
    digits(id.as_u128(), 26) + &digits(tag, 20)
}
