//! The notification upstream: accepts notifications, queues them, delivers them through providers
//! and answers status queries. Delivery is at least once: an accepted notification is not lost and
//! may be repeated.
//!
//! The modules, in the order of the data flow:
//!
//! 1. `http` parses requests; `intake` validates them and commits them in groups to the `store`.
//! 2. `dispatch` claims waiting rows in strict order of priority, or takes a row at once if a
//!    permit was free at acceptance.
//! 3. `delivery` finds the address, renders the template and calls a provider. The result is
//!    written under the fence of the claim.
//! 4. `receipts` reads the later reports of providers and mail servers.
//! 5. `status` derives the status document from the record, the results and the receipts.
//!
//! The remaining modules are leaves that the stages share: the vocabulary (`notification`,
//! `address`, `principal`), `templates`, `store`, `lease` and `metrics`.

mod address;
mod app;
pub mod cli;
mod config;
mod delivery;
mod dispatch;
mod housekeeping;
mod http;
mod intake;
mod lease;
mod metrics;
mod notification;
mod principal;
mod receipts;
mod status;
mod store;
mod templates;
#[cfg(test)]
mod testing;

pub use app::{App, Listeners, MAX_SHUTDOWN_DURATION};
pub use config::Config;

/// The queue without its service, for benchmarks. Not a stable interface.
#[doc(hidden)]
pub mod queue {
    pub use crate::notification::{Channel, Lane, NotificationId, Order, OrderSequence, Priority};
    pub use crate::store::{
        Claim, Claimed, Finished, NewNotification, Next, Record, ResultKind, ResultRow, Store,
        StoreError,
    };
}
