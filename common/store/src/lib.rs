//! What outlives a request: the durable database and the volatile cache.
//!
//! - [`database`] opens PostgreSQL or SQLite by URL, migrates it and classifies its errors. SQL
//!   belongs to the `store` module of each service, with one text for both databases where they
//!   agree. Lost data is an incident.
//! - [`cache`] opens Redis or process memory by URL: single-use values, counters, locks and copies.
//!   Every value has a lifetime and may be lost.
//!
//! Calls have deadlines, failing stores are not called by every request, and spans of calls have
//! neither keys nor values.

pub mod cache;
pub mod database;
