//! What outlives a request: the durable database and the volatile cache.
//!
//! | modules | hold |
//! |---|---|
//! | [`database`] | PostgreSQL or SQLite, by URL: connections, migrations, classes of errors, spans of statements. Lost data is an incident |
//! | [`cache`] | Redis or process memory, by URL: single-use values, counters, locks and copies. Each value has a lifetime and may be lost |
//!
//! Calls have deadlines, and a store that fails is not called by every request. Spans have neither
//! keys nor values.
//!
//! **Code belongs here** if it is the same for the stores of all services. Their tables and
//! statements are in the module `store` of each service.
//!
//! **It depends on** `postern-core`, and not on `postern-service`: it has no listener and knows no
//! request. The gateway and the console do not depend on it.

pub mod cache;
pub mod database;
