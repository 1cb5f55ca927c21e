//! All of Postern in one process: the gateway, both upstreams, the console, and the pretended systems
//! of `postern-dev`.
//!
//! The services are the same code with the same configuration files (`conf/`) as in separate
//! processes, with SQLite and in-memory caches. [`start`] starts an installation in a data folder
//! and returns it as [`Running`]. [`start_configured`] runs the three services from an operator's
//! own configuration files, without any pretended system.

// Entry points.
mod console;
mod startup;
mod timeline;
mod tokens;
mod users;

// The gateway and both upstreams.
mod services;

// Sockets, environment file and shutdown.
mod lifecycle;

pub use console::console_link;
pub use lifecycle::Running;
pub use startup::{Options, greeting, start, start_configured};
pub use timeline::{TimelineSources, timeline};
pub use tokens::service_token;
pub use users::Users;
