//! The local identity pool: a server that speaks Amazon Cognito's JSON 1.1 wire for the operations
//! that Postern uses and for administration, so that AWS's SDKs and command line work against it.
//!
//! It is held to Cognito's real behaviour: `SECRET_HASH` over the right name, the real-username
//! rule, rotation and reuse of refresh tokens, lockout, readable and writable attributes. Where it
//! is stricter on purpose, the code says so. Start with [`App`]; [`Provisioned`] is what another
//! process needs to join in.
//!
//! A call goes through `wire` (protocol and signature), `operation` (one function each) and `store`
//! (SQL).

mod app;
mod bootstrap;
mod config;
mod delivery;
mod directory;
mod fault;
mod hasher;
mod lockout;
mod operation;
mod password;
mod pool;
mod random;
mod server;
mod signing;
mod store;
mod tokens;
mod user;
mod wire;

pub use app::{App, Listeners};
pub use bootstrap::{Access, Account, Provisioned};
pub use config::Config;
pub use delivery::{CodeDelivery, CodeMail, CodePurpose};
pub use hasher::Hashing;
pub use password::PasswordPolicy;
pub use pool::{ClientSettings, PoolSettings};

#[cfg(test)]
mod tests;
