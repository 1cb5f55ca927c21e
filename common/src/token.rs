//! Who is calling: verification of Bearer tokens.
//!
//! A token's way through this module: the compact form is read strictly, the issuer that it names
//! selects the trust and the keys, the signature is checked, then the times, and last the truth
//! table of the contract decides between [`User`] and [`Service`] (by issuer, then `token_use`,
//! then client, and only then by the claim). [`Verifier`] does all of it and remembers verified
//! tokens; keys come from a JWKS engine that works off the request path. [`oidc`] verifies ID
//! tokens of a social provider with the same parts.

mod cache;
mod caller;
mod jwk;
mod jwks;
mod jws;
mod mark;
pub mod oidc;
mod refusal;
mod roca;
mod strict;
mod trust;
mod verifier;

pub use caller::{Caller, Claims, Service, User};
pub use jwks::{JwksStatus, SkippedKey};
pub use refusal::Refusal;
pub use trust::{Issuer, IssuerKind, IssuerRules, ServiceNames};
pub use verifier::{Prepared, Verifier, VerifierOptions};

#[cfg(test)]
mod tests;

/// Longest token that is read, in bytes.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;
