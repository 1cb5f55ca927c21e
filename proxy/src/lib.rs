//! The edge gateway of Postern, built on Pingora.
//!
//! A request passes these modules, in the order in which they are listed below:
//!
//! 1. `lifecycle` builds the gateway from a [`config::Config`] and runs it ([`App`]);
//! 2. `server` accepts the connection and reads the head through `downstream`;
//! 3. [`postern_http::message`] rejects what is malformed or ambiguous;
//! 4. `admission` finds the route ([`routing`]), applies rate limits ([`rate_limiter`]), verifies
//!    the token and evaluates the policy;
//! 5. [`forwarding`] adds the identity headers, sends the request to an `upstream` address, and
//!    returns the response, compressed if the route asks for it;
//! 6. [`telemetry`] records the result.
//!
//! `state` is shared by all requests, and `admin` shows it to operators, who change the
//! configuration file by `config_editor`. The documentation of each
//! module lists the modules that it may depend on; there are no dependency cycles. [`config`],
//! [`api_keys`], [`rate_limiter`] and [`routing`] do not use Pingora.

pub mod config;

mod lifecycle;

mod server;

mod certificates;

mod downstream;

mod admission;

mod external_authorization;

pub mod api_keys;

pub mod rate_limiter;

pub mod routing;

pub mod forwarding;

mod upstream;

pub mod telemetry;

mod state;

mod config_editor;

mod admin;

pub use certificates::certificate_warnings;
pub use config::{Config, SCHEMA};
pub use config_editor::{ConfigWarning, FoundWarnings};
pub use lifecycle::{
    App, InheritedListeners, InheritedSockets, Listeners, PreviousProcess, check_files,
};
pub use routing::difference::{
    DecisionSummary, Difference, TooManyRequests, differences, uncompared_changes,
};
pub use routing::explain::{CallerSource, explain};
pub use routing::warnings::warnings;
pub use telemetry::TraceContext;

#[cfg(test)]
mod tests;
