//! Status queries: from the rows of a notification to its status document.
//!
//! [`reader`] reads records, results and receipts in batches, through a cache of one second;
//! [`view`] derives the status document from them. The status itself is never stored. [`list`] reads
//! pages of notifications.
//!
//! Depends on `address`, `notification`, `principal`, `store` and `dispatch` (for the reason why a
//! notification waits).

pub(crate) mod list;
pub(crate) mod reader;
pub(crate) mod timeline;
pub(crate) mod view;
