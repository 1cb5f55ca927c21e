//! The notification upstream: accept, queue, deliver, tell.
//!
//! The way of a notification: [`http`] reads it into a [`request::Request`] and checks template and
//! variables;
//! [`accept`] commits it with whatever else arrived meanwhile ([`store`]); [`dispatch`] claims it in strict order of
//! priority, or has it at once where a permit was free; [`deliver`] finds the address, renders and
//! calls a
//! [`provider`]; the result is written under the claim's fence; [`view`] derives the status from all of it.

pub mod accept;
pub mod actor;
pub mod address;
mod app;
pub mod config;
pub mod deliver;
pub mod dispatch;
pub mod dsn;
pub mod housekeeping;
pub mod http;
pub mod mail_token;
pub mod metrics;
pub mod notification;
pub mod outlet;
pub mod provider;
pub mod quota;
pub mod read;
pub mod request;
pub mod retry;
pub mod sequence;
pub mod store;
pub mod suppression;
pub mod template;
#[cfg(test)]
mod testing;
pub mod unverified;
pub mod view;
pub mod webhook;

pub use app::{App, LONGEST_STOP, Listeners};
pub use config::Config;
