//! Random values, password hashes, and signing keys.
//!
//! Input: passwords and claims. Output: hashes and signed tokens. Depends on `model` and
//! `error`.

mod passwords;
pub(crate) mod random;
mod signing_keys;

pub(crate) use self::passwords::{hash_password, is_password};
pub(crate) use self::signing_keys::{SigningKeys, new_signing_key};
