//! Certificates from an ACME server (RFC 8555).
//!
//! All gateways that share the store directory share the account, the certificates, the responses
//! to challenges and the times of retries. A lock file lets one gateway order at a time; the others
//! load what it has obtained.

mod challenges;
mod client;
mod issued;
mod order;
mod renewal;
mod store;

pub(crate) use challenges::PendingChallenges;
pub(crate) use renewal::AcmeRenewal;
pub(crate) use store::AcmeStore;

#[cfg(test)]
mod tests;
