//! The gateway.

mod admin;
mod admission;
pub mod config;
mod downstream;
pub mod forwarding;
mod lifecycle;
pub mod message;
pub mod rate_limiter;
pub mod routing;
mod server;
mod state;
pub mod telemetry;
mod upstream;

pub use config::{ASSUMED_POOLS, Config, SCHEMA, assumed_settings};
pub use lifecycle::{
    App, InheritedListeners, InheritedSockets, Listeners, PreviousProcess, check_files,
};
pub use routing::explain::{CallerSource, explain};
pub use telemetry::TraceContext;

#[cfg(test)]
mod tests;
