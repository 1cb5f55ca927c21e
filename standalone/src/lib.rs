//! All of Postern in one process: the gateway, both upstreams, the console, the identity pool, and
//! the development services (sample services, social provider, mail catcher).
//!
//! The services are the same code with the same configuration files (`conf/`) as in separate
//! processes, with SQLite and in-memory caches. [`start`] starts an installation in a data folder
//! and returns it as [`Running`]. [`start_configured`] runs the three services from an operator's
//! own configuration files, without any development service.

// Entry points.
mod console;
mod startup;
mod timeline;
mod tokens;

// The gateway and both upstreams.
mod services;

// Replacements for an operator's own systems.
mod development;
mod sample;
mod social;

pub mod mail;

// Parts shared by the above.
mod lifecycle;
mod web;

mod data_folder;

pub use console::console_link;
pub use lifecycle::{Addresses, Running};
pub use startup::{Options, greeting, start, start_configured};
pub use timeline::{TimelineSources, timeline};
pub use tokens::{service_token, user_token};
