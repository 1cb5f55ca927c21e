//! The web console: pages for operators, support and developers over the admin APIs of the gateway
//! and the services.
//!
//! Every page is a static shell that anybody may load. Its script fetches the contents as HTML
//! fragments with a bearer token, which the gateway verifies. There are no cookies.
//!
//! The modules, in the order of the data flow:
//!
//! 1. `config` reads `conf/console.toml`; `processes` knows the replicas and calls them (`json_limit`
//!    bounds their answers), `sign_in` the listener of postern-auth.
//! 2. `sampling` reads `/metrics` and `/readyz` of each replica every 5 s (`prometheus_text` parses, `status` is
//!    the result, `traffic` what was counted, `history` keeps six hours of it and `prometheus` asks for more, `findings` says which of the `conditions` are met, `evidence` what the requests behind them have in common).
//! 3. `access` verifies who is calling (`attempts` limits guesses, `sessions` has those of the one-time link, which `link` requests); `actions` are the changes that an operator may make.
//!    `configuration` changes the configuration files of the gateways.
//! 4. `pages` renders fragments with `widgets` and `charts`; `shell` has the static part and the assets.
//! 5. `http` routes requests, `live` streams updates, `tail` requests (`tail_limit` of them for each person), `state` is what they share, `app` assembles the parts.

mod config;

mod json_limit;
mod processes;

mod prometheus_text;

mod conditions;
mod evidence;
mod faults;
mod findings;
mod frames;
mod history;
mod prometheus;
mod sampling;
mod status;
mod tail;
mod tail_limit;
mod traffic;

mod access;
mod attempts;
pub mod link;
mod sessions;

mod actions;
mod configuration;

mod charts;
mod pages;
mod shell;
mod sign_in;
mod widgets;

mod state;

mod http;
mod live;

mod app;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use app::App;
pub use config::{Config, Members, ProcessGroup, ProcessKind, RoleRules};
