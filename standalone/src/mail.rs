//! The mail catcher: an SMTP server that delivers to a folder, with a page and an API to read it.
//!
//! It takes mail for anyone and sends none on. `250` after DATA means that the message is on disk,
//! so a SIGKILL loses nothing that was accepted.

mod address;
mod mime;
mod page;
mod server;
mod session;
mod store;

pub(crate) use page::router;
pub(crate) use server::serve;
pub use store::{Mailbox, Query, Summary};
