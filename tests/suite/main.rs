//! End to end, over real sockets. Run by `./tests/run`.

mod auth_enumeration;
mod auth_factors;
mod auth_faults;
mod auth_peer;
mod auth_register;
mod auth_secrets;
mod auth_stage;
mod bad_input;
mod browser;
mod clock;
mod config_files;
mod contract;
mod document;
mod endurance;
mod gateway_changes;
mod gateway_deploy;
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
