//! End to end, over real sockets. Run by `./tests/run`.

mod bad_input;
mod browser;
mod clock;
mod config_files;
mod contract;
mod document;
mod endurance;
mod gateway_changes;
mod guard;
mod hostile;
mod house;
mod identity_headers;
mod interface;
mod main_job;
mod refusals;
mod start;
mod statuses;
mod webhook;
