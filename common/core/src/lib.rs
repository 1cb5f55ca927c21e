//! What every process of Postern uses, the gateway as well as the services.
//!
//! This crate performs no I/O of its own but reading files, fetching key sets, and printing: no server, no
//! database, no cache. The other two shared crates build on it and know nothing of each other:
//! `postern-service` has the HTTP server, the admin listener and calls between services;
//! `postern-store` has the database and the cache. A module belongs here if at least two processes
//! use it and it knows no route, no authentication flow and no notification.
//!
//! - **Configuration.** [`config`] reads files, includes and the environment; [`decode`] turns TOML
//!   and JSON into values and reports every mistake at once, with line and key; [`email`],
//!   [`network`] and [`identity`] are the values that several programs read.
//! - **Command line.** [`exit`] parses arguments and maps errors to exit statuses, [`output`] prints
//!   text or JSON, [`check`] has the results of the command `check`.
//! - **Who calls.** [`token`] verifies tokens against the trusted issuers and keeps their key sets;
//!   [`seal`] encrypts what leaves the process, [`secret`] keeps values out of logs.
//! - **What went wrong.** [`problem`] has the codes and bodies of error responses; [`health`] and
//!   [`dependency`] say whether a process and the systems it needs work; [`mod@metrics`]
//!   declares metrics; [`log_limit`] keeps an outage from filling the log.
//! - **Time and failure.** [`clock`] is a parameter of everything that asks for the time;
//!   [`backoff`], [`circuit_breaker`] and [`weighted`] serve those that call others; [`group_commit`]
//!   processes what arrives during a call with the next one.
//! - **Traces.** [`trace`] holds the ids of the work in progress and its spans. `postern-service`
//!   exports them.
//!
//! [`files`] reads and replaces files safely, [`hidden_characters`] shows characters that deceive
//! readers, and [`testing`] has what the tests of all crates share.

pub mod clock;
pub mod files;
pub mod hidden_characters;
pub mod secret;

pub mod backoff;
pub mod circuit_breaker;
pub mod group_commit;
pub mod weighted;

pub mod check;
mod command_line;
pub mod exit;
pub mod log_limit;
pub mod output;

pub mod config;
pub mod decode;
pub mod email;
pub mod identity;
pub mod network;

pub mod dependency;
pub mod health;
pub mod metrics;
pub mod problem;
pub mod seal;
pub mod token;
pub mod trace;

pub mod testing;

pub use clock::Clock;
pub use problem::{Code, Problem};
pub use secret::Secret;
