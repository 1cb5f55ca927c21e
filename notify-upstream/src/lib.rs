//! The notification upstream: accepts notifications, queues them, delivers them through providers
//! and answers status queries. Delivery is at least once: an accepted notification is not lost and
//! may be repeated.
//!
//! The modules, in the order of the data flow:
//!
//! 1. `http` parses requests; `intake` validates them and commits them in groups to the `store`.
//! 2. `dispatch` claims waiting rows in strict order of priority.
//! 3. `delivery` finds the address, renders the template and calls a provider. The result is
//!    written under the fence of the claim.
//! 4. `receipts` reads the later reports of providers and mail servers.
//! 5. `status` derives the status document from the record, the results and the receipts.
//!
//! The stages share the vocabulary (`notification`, `address`, `principal`), `templates`, the
//! `store`, worker leases (`lease`) and `metrics`. `app` assembles the stages from the `config`,
//! `housekeeping` runs beside them.

// Requests and their acceptance.
mod http;

mod intake;

// From the queue to the providers.
mod dispatch;

mod delivery;

// Delivery reports, and status queries.
mod receipts;

mod status;

// Shared by all stages.
mod address;
mod notification;
mod principal;
mod templates;

mod store;

mod lease;
mod metrics;

// Assembly and operation.
mod config;

mod app;
mod housekeeping;

pub mod cli;

#[cfg(test)]
mod testing;

pub use app::{App, MAX_SHUTDOWN_DURATION};
pub use config::Config;
pub use postern_service::startup::Listeners;
pub use status::timeline::NotificationReader;
