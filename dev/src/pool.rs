//! A local identity pool: a server for the part of Amazon Cognito's JSON 1.1 API that Postern uses,
//! and for administration, so that AWS SDKs and the AWS CLI work against it.
//!
//! Its behaviour follows Cognito: the name that `SECRET_HASH` covers, real usernames, rotation and
//! reuse detection of refresh tokens, readable and writable attributes. It sends no mail: the
//! authentication service makes the codes. Deliberate
//! deviations are stricter and are documented where they are implemented. [`App`] runs the server;
//! [`ProvisionedPools`] holds the ids and secrets that other processes need.
//!
//! A call passes through `wire` (protocol and signature), `operations` (one function for each
//! operation), and `store`.

// Assembly.
mod app;
mod bootstrap;
mod config;

// The HTTP protocol and its signatures.
mod wire;

// One function for each operation of the API.
mod operations;

// State and rules that operations share.
mod context;
mod tokens;

// Cryptography and persistence.
mod crypto;
mod store;

// Plain types.
mod error;
mod model;

pub use app::App;
pub use bootstrap::{PoolAccess, ProvisionedPools};
pub use config::Config;

#[cfg(test)]
mod tests;
