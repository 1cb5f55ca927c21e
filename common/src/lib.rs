//! What Postern's processes share.
//!
//! This crate knows no route, no sign-in flow and no notification: it holds only what at least two
//! of the processes use. Start with [`token`] (who is calling), [`problem`] (what a refusal looks
//! like) and
//! [`decode`] (how requests and configuration are read so that every mistake is told at once).

pub mod admin;
pub mod cache;
pub mod clock;
pub mod config;
pub mod database;
pub mod decode;
pub mod exit;
pub mod http;
pub mod identity;
pub mod log;
pub mod problem;
pub mod seal;
pub mod secret;
pub mod service;
pub mod signals;
pub mod start;
pub mod supervisor;
pub mod testing;
pub mod token;

pub use clock::Clock;
pub use problem::{Code, Problem};
pub use secret::Secret;
