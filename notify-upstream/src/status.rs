//! Status queries: from the rows of a notification to its status document.
//!
//! [`view`] derives the status document from the records, results and receipts that the store reads
//! of a notification. The status itself is never stored. [`list`] reads pages of notifications.
//!
//! Depends on `address`, `notification`, `principal`, `store` and `dispatch` (for the reason why a
//! notification waits).

pub(crate) mod list;
pub(crate) mod timeline;
pub(crate) mod view;
