//! Random values, password hashes, and signing keys.
//!
//! Input: passwords and claims. Output: PHC strings and signed tokens. Depends on `model` and
//! `error`.

mod password_hasher;
pub(crate) mod random;
mod signing_keys;

pub use self::password_hasher::HashingSettings;
pub(crate) use self::password_hasher::PasswordHasher;
pub(crate) use self::signing_keys::{SigningKeys, new_signing_key};
