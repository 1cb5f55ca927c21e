//! The authentication upstream: sign-in, registration, social sign-in, tokens.
//!
//! It speaks Amazon Cognito's protocol and nothing else, and keeps no session: what a client holds
//! is a JWT of the pool's, and a refresh token that is sealed here. Start with [`App`] (the
//! process), then `http.rs` (the routes); each journey has a file of its own: `login`, `logout`,
//! `register`, `refresh`, `challenge`, `password`, `social`, `temporary_token`, `session`. `pool`
//! holds every call to Cognito and the table of its refusals, `store` all SQL, `seal` and `vault`
//! all sealing.

mod abuse;
mod actors;
mod app;
mod assemble;
mod audit;
mod auth;
mod challenge;
mod compensation;
mod config;
mod doctor;
mod email;
mod grant;
mod http;
mod log_limit;
mod login;
mod logout;
mod metrics;
mod pace;
mod password;
mod pool;
mod profile;
mod proxies;
mod random;
mod refresh;
mod register;
mod seal;
mod session;
mod social;
mod store;
mod temporary_token;
mod token_set;
mod vault;

pub use abuse::AbuseLimits;
pub use app::{App, Listeners};
pub use config::{Config, Confirm, Delivery, Refresh, SocialConfig};
pub use doctor::{Finding, State};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
