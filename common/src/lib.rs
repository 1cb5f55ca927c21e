//! Shared code of Postern's processes.
//!
//! A module belongs here if at least two processes use it and it knows no route, no authentication
//! flow and no notification. The modules are listed in the order in which a process uses them:
//!
//! 1. Start: [`config`] and [`decode`] read the configuration and report every mistake at once, with
//!    [`email`] and [`network`] for addresses; [`identity`] holds the settings of the identity
//!    pools; [`exit`], [`output`], [`check`], [`log`], [`log_limit`], [`signals`], [`service_manager`] and [`startup`] connect a process
//!    to its environment.
//! 2. State: [`database`] and [`cache`] open the durable and the volatile store; [`group_commit`]
//!    writes in batches.
//! 3. Requests: [`accept`] and [`http`] serve them, [`token`] verifies who is calling, [`problem`]
//!    renders error responses, [`service`] calls other services, [`trace`] carries the ids of a
//!    request on and exports spans, [`admin`] serves readiness and metrics, among them those of
//!    [`dependency`] and [`process_metrics`], [`admin_api`] protects routes for operators, and [`timeline`]
//!    serves what happened to a person.
//!
//! [`clock`], [`files`], [`secret`] and [`seal`] are used by all of them; [`backoff`], [`circuit_breaker`] and
//! [`weighted`] by those that call others; [`hidden_characters`] by those with pages.

pub mod clock;
pub mod files;
pub mod hidden_characters;
pub mod secret;

pub mod backoff;
pub mod circuit_breaker;
pub mod weighted;

pub mod check;
mod command_line;
pub mod exit;
pub mod log;
pub mod log_limit;
pub mod output;
pub mod signals;

pub mod config;
pub mod decode;
pub mod email;
pub mod identity;
pub mod network;

pub mod service_manager;
pub mod startup;

pub mod cache;
pub mod database;
pub mod group_commit;
pub mod seal;

pub mod accept;
pub mod admin;
pub mod admin_api;
pub mod dependency;
pub mod http;
pub mod problem;
pub mod process_metrics;
pub mod service;
pub mod timeline;
pub mod token;
pub mod trace;

pub mod testing;

pub use clock::Clock;
pub use problem::{Code, Problem};
pub use secret::Secret;
