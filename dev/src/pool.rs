//! A local identity pool: a server for the part of Amazon Cognito's JSON 1.1 API that Postern uses,
//! and for administration, so that AWS SDKs and the AWS CLI work against it.
//!
//! Its behaviour follows Cognito: the name that `SECRET_HASH` covers, real usernames, rotation and
//! reuse detection of refresh tokens, readable and writable attributes. It sends no mail: the
//! authentication service makes the codes. Deliberate deviations are stricter and are documented
//! where they are implemented.
//!
//! A call passes through `wire` (protocol and signature), `operations` (one function for each
//! operation), and `store`.

mod app;
mod bootstrap;
mod config;
mod context;
mod crypto;
mod error;
mod model;
mod operations;
mod store;
mod tokens;
mod wire;

pub use app::App;
pub use bootstrap::{PoolAccess, ProvisionedPools};
pub use config::Config;

#[cfg(test)]
mod tests;
