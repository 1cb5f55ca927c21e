//! Lifecycle of the process: assembly, reload, hot restart and graceful shutdown.
//!
//! - **Enters:** a [`Config`](crate::config::Config), listening sockets, signals.
//! - **Leaves:** a running gateway, which follows its configuration file until it is stopped or
//!   replaced by a new process.
//! - **May depend on:** all other modules; none depends on this one.

pub(crate) mod app;
mod background_tasks;
mod file_checks;
mod gauges;
mod hot_restart;
mod listener_tls;
mod reload;
mod socket_activation;
mod startup_settings;

pub use app::App;
pub use file_checks::check_files;
pub use hot_restart::{InheritedListeners, PreviousProcess};
pub use socket_activation::{InheritedSockets, Listeners};
