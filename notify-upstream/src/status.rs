//! Status queries: from the rows of a notification to its status document.
//!
//! [`reader`] reads records, results and receipts in batches, through a cache of one second;
//! [`view`] derives the status document from them. The status itself is never stored.
//!
//! Depends on `notification`, `store` and `dispatch` (for the reason why a notification waits).

pub(crate) mod reader;
pub(crate) mod view;
