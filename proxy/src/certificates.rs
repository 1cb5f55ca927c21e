//! Certificates: their files or ACME server, names, revocation status, and the clients that they
//! authenticate.
//!
//! - **Enters:** the `[listen.tls]` tables of the configuration.
//! - **Leaves:** a TLS configuration for the server name of a handshake, the service that a client
//!   certificate identifies, and whether a host may be requested on a connection.
//! - **May depend on:** [`crate::config`], [`postern_http::message`] and [`crate::telemetry`] for metrics.

mod acme;
mod client_auth;
mod files;
mod hosts;
mod leaf;
mod loading;
mod names;
mod selector;
mod server_tls;
mod slot;
mod warnings;

pub(crate) use acme::{AcmeRenewal, AcmeStore, PendingChallenges};
pub(crate) use client_auth::TlsClient;
pub(crate) use files::{acme_file_fault, certificates, check_upstream_files, private_key};
pub(crate) use hosts::HostGuard;
pub(crate) use loading::check_listener_files;
pub(crate) use server_tls::ServerTls;
pub use warnings::certificate_warnings;

#[cfg(test)]
mod tests;
