//! Verification of Bearer tokens.
//!
//! A token passes these steps: its compact form is parsed strictly, `iss` selects the trusted
//! issuer and its keys, `jsonwebtoken` verifies the signature, then the times are checked, and
//! finally the issuer's kind, `token_use`, the client and `custom:service_id` decide, in this order,
//! between [`User`] and [`Service`]. [`Verifier`] performs the steps and caches the results. Keys
//! are fetched in the background. [`oidc`] verifies ID tokens of social providers with the same
//! parts.
//!
//! Input: the value of `Authorization` and the keys of the issuers. Output: the caller, or the
//! reason for the rejection.

mod cache;
mod caller;
mod digest;
mod error;
mod jwk;
mod jwks;
mod jws;
mod limits;
pub mod oidc;
mod roca;
mod strict_json;
mod trust;
mod verifier;

pub use caller::{Caller, Claims, Service, User};
pub use error::TokenError;
pub use jwks::{JwksStatus, PublicKeyInfo, SkippedKey};
pub use limits::TokenLimits;
pub use trust::{Issuer, IssuerKind, IssuerRules, ServiceNames};
pub use verifier::{PreparedIssuers, Verifier, VerifierOptions};

#[cfg(test)]
mod tests;
