//! Random values, password hashes, and signing keys.
//!
//! Depends on `store` (which persists the signing keys) and `error`.

pub(crate) mod password_hasher;
pub(crate) mod random;
pub(crate) mod signing_keys;
