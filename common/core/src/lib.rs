//! What all processes of Postern share and what needs neither a server nor a store: values, rules,
//! and errors.
//!
//! | modules | hold |
//! |---|---|
//! | [`config`], [`decode`] | configuration from files and the environment; TOML and JSON, whose mistakes are all reported at once, with line and key |
//! | [`email`], [`identity`], [`network`] | e-mail addresses, identity pools, IP networks and the addresses of clients |
//! | [`exit`], [`check`], [`output`] | the command line: arguments and exit statuses, the command `check`, text or JSON |
//! | [`token`] | verification of bearer tokens, and the key sets of their issuers |
//! | [`seal`], [`secret`], [`hidden_characters`] | encryption of what leaves the process, values that are never printed, characters that deceive readers |
//! | [`problem`] | codes and bodies of error responses |
//! | [`health`], [`dependency`], [`mod@metrics`], [`log_limit`] | readiness, the availability of other systems, metrics, limits for log events |
//! | [`trace`] | the ids of the work in progress, and its spans |
//! | [`backoff`], [`circuit_breaker`], [`group_commit`], [`weighted`] | the only implementation of delays between retries, of circuit breakers, of batches, and of choice by weight |
//! | [`clock`], [`files`], [`testing`] | the time as a parameter, files that are read and replaced safely, what all tests share |
//!
//! **A module belongs here** if two processes use it and it knows no route, no sign-in and no
//! notification.
//!
//! **It depends on** no other package of Postern. Its I/O is files, standard output and requests for
//! key sets: it listens on no socket, and knows neither database nor cache. Of axum it has the
//! response trait only.

pub mod config;
pub mod decode;
pub mod email;
pub mod identity;
pub mod network;

pub mod check;
pub mod exit;
pub mod output;

pub mod hidden_characters;
pub mod problem;
pub mod seal;
pub mod secret;
pub mod token;

pub mod dependency;
pub mod health;
pub mod log_limit;
pub mod metrics;
pub mod trace;

pub mod backoff;
pub mod circuit_breaker;
pub mod group_commit;
pub mod weighted;

pub mod clock;
pub mod files;
pub mod testing;

pub use clock::Clock;
pub use problem::{Code, Problem};
pub use secret::Secret;
